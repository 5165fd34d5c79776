<?php

declare(strict_types=1);

namespace Forrst\Tests\Real;

use Forrst\Tests\Support\Server;
use Forrst\Tests\Support\TestCase;

/**
 * The examples of the README run, one after the other, in one program.
 */
final class ReadmeTest extends TestCase
{
    public function testTheExamplesRun(): void
    {
        $readme = (string) file_get_contents(dirname(__DIR__, 2) . '/README.md');
        // Those for Laravel need an application.
        [$examples] = explode("\n## Laravel\n", $readme);
        self::assertGreaterThanOrEqual(8, preg_match_all('/```php\n(.*?)```/s', $examples, $blocks));
        $server = new Server();
        $program = $server->php(str_replace('http://127.0.0.1:7420', $server->url, implode("\n", $blocks[1])) . "\nsay('done');");
        $output = [];
        while (($line = $program->tryLine()) !== null) {
            $output[] = $line;
        }
        self::assertSame(0, $program->wait(), implode("\n", $output));
        self::assertStringStartsWith('exporting with the fence 0', $output[0]);
        self::assertContains('succeeded', $output);
        self::assertSame('done', end($output));
        self::assertSame([], iterator_to_array($server->client()->locks()->listAll()));
    }
}

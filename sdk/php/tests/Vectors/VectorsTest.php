<?php

declare(strict_types=1);

namespace Forrst\Tests\Vectors;

use Forrst\Tests\Support\Process;
use Forrst\Tests\Support\Server;
use PHPUnit\Framework\TestCase;

/**
 * The client does what the vectors for clients say. Most of their time is waiting, so they are played side by side.
 */
final class VectorsTest extends TestCase
{
    private const AT_ONCE = 16;

    /** @var array<string, array{int, string}> The exit code and the output of each. */
    private static array $played = [];

    public static function setUpBeforeClass(): void
    {
        $names = array_column(self::vectors(), 0);
        self::play($names, self::AT_ONCE);
        // Some have to do with time, and a machine that is too busy can take more of it than they allow.
        for ($again = 0; $again < 2; $again++) {
            $failed = array_filter($names, static fn (string $name): bool => self::$played[$name][0] !== 0);
            foreach ($failed as $name) {
                fwrite(STDERR, "\nfailed, played again: $name\n" . self::$played[$name][1]);
            }
            self::play($failed, 1);
        }
    }

    /** @param array<string> $waiting */
    private static function play(array $waiting, int $atOnce): void
    {
        $playing = [];
        while ($waiting !== [] || $playing !== []) {
            while ($waiting !== [] && count($playing) < $atOnce) {
                $name = array_pop($waiting);
                $playing[$name] = new Process([PHP_BINARY, __DIR__ . '/play.php', $name]);
            }
            usleep(10_000);
            foreach ($playing as $name => $process) {
                if ($process->hasEnded()) {
                    unset($playing[$name]);
                    $output = '';
                    while (($line = $process->tryLine()) !== null) {
                        $output .= "$line\n";
                    }
                    self::$played[$name] = [$process->wait(), $output];
                }
            }
        }
    }

    /** @return array<string, array{string}> */
    public static function vectors(): array
    {
        $list = new Process([Server::binary(), 'conformance', 'stub', '--list']);
        $vectors = [];
        while (($name = $list->tryLine()) !== null) {
            $vectors[$name] = [$name];
        }
        return $vectors;
    }

    /** @dataProvider vectors */
    public function testVector(string $name): void
    {
        [$code, $output] = self::$played[$name];
        self::assertSame(0, $code, $output);
        self::assertStringEndsWith("{\"verdict\":\"passed\"}\n", $output);
    }

    public function testThereAreVectors(): void
    {
        self::assertGreaterThanOrEqual(40, count(self::$played));
    }
}

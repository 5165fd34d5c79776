<?php

declare(strict_types=1);

namespace Forrst\Tests\Unit;

use Forrst\Exception\Lost;
use Forrst\Lease;
use Forrst\Tests\Support\Process;
use Forrst\Tests\Support\TestCase;
use Forrst\Client;

/**
 * Watches whose answers the real server gives too rarely for a test.
 */
final class WatcherTest extends TestCase
{
    /** A server that grants locks, and gives the same answer to every watch. */
    private const SERVER = <<<'PHP'
        $socket = stream_socket_server('tcp://127.0.0.1:0');
        echo stream_socket_get_name($socket, false), "\n";
        $grant = ['key' => 'k', 'full_key' => 'lock:k', 'owner' => 'me', 'fence' => '000000000000007',
            'expires_at' => '2099-01-01T00:00:00.000Z', 'ttl_remaining_ms' => 3600000, 'elapsed_ms' => 0];
        while (true) {
            $connection = stream_socket_accept($socket, -1);
            [$length, $body] = [0, ''];
            while (($line = trim((string) fgets($connection))) !== '') {
                $length = sscanf($line, 'Content-Length: %d')[0] ?? $length;
            }
            $request = json_decode((string) stream_get_contents($connection, $length), true);
            $function = substr((string) strrchr($request['call']['function'], ':'), 1);
            echo $function, "\n";
            $answer = ['protocol' => ['name' => 'forrst', 'version' => '0.1.0'], 'id' => $request['id']] + match ($function) {
                'acquire' => ['result' => $grant],
                'watch' => json_decode($argv[1], true),
                default => ['result' => null, 'errors' => [['code' => 'LOCK_NOT_FOUND']]],
            };
            $body = json_encode($answer);
            fwrite($connection, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " . strlen($body) . "\r\n\r\n$body");
            fclose($connection);
        }
        PHP;

    /**
     * @param array<string, mixed> $watched
     * @return array{Lease, Process}
     */
    private static function lease(array $watched): array
    {
        $server = new Process([PHP_BINARY, '-r', self::SERVER, '--', (string) json_encode($watched)]);
        $client = new Client('http://' . $server->line());
        return [$client->lock('k', ttl: 3600, watch: true)->acquire(), $server];
    }

    public function testAnAnswerThatProvesNothingIsFollowedByAnExtension(): void
    {
        [$lease, $server] = self::lease(['result' => ['key' => 'lock:k', 'locked' => true, 'waiters' => 0, 'revision' => 'a']]);
        // The next renewal would be in twenty minutes.
        $error = self::thrown(Lost::class, static fn () => $lease->sleep(600));
        self::assertStringContainsString('LOCK_NOT_FOUND', $error->getMessage());
        self::assertSame(['acquire', 'watch', 'extend'], [$server->line(), $server->line(), $server->line()]);
    }

    public function testNeitherARefusalNorAnAnswerThatIsNotUnderstoodIsALoss(): void
    {
        $answers = [
            ['result' => null, 'errors' => [['code' => 'FORBIDDEN']]],
            ['result' => null, 'errors' => [['code' => 'UNAVAILABLE']]],
            ['result' => null],
        ];
        foreach ($answers as $watched) {
            [$lease, $server] = self::lease($watched);
            self::assertSame(['acquire', 'watch'], [$server->line(), $server->line()]);
            $lease->sleep(0.2);
            self::assertTrue($lease->isHeld());
            $lease->keep();
        }
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Tests\Real;

use Forrst\Call;
use Forrst\Client;
use Forrst\Exception\Contended;
use Forrst\Exception\DeadlineExceeded;
use Forrst\Exception\Forbidden;
use Forrst\Exception\FunctionFailed;
use Forrst\Exception\Rejected;
use Forrst\Exception\TimedOut;
use Forrst\Exception\Unauthorized;
use Forrst\Exception\Unreachable;
use Forrst\Lock;
use Forrst\Retry;
use Forrst\Tests\Support\Certificates;
use Forrst\Tests\Support\Folder;
use Forrst\Tests\Support\Process;
use Forrst\Tests\Support\Redis;
use Forrst\Tests\Support\Server;
use Forrst\Tests\Support\TestCase;

/**
 * Calls, transports, access, and servers that stop.
 */
final class ServerTest extends TestCase
{
    public function testAFunctionRunsUnderALock(): void
    {
        $server = new Server();
        $client = $server->client();
        $receipt = $client->call(
            'payments.charge',
            ['user_id' => 'user_123', 'amount' => 100],
            lock: new Lock('user:123', ttl: 30, wait: 5),
        );
        self::assertSame('succeeded', $receipt['status']);
        $response = $client->response(new Call('demo.echo', ['a' => []], new Lock('k', owner: 'me', keep: true)));
        self::assertSame(['a' => []], $response->result);
        self::assertSame('lock:demo.echo:k', $response->lock()?->fullKey);
        self::assertNotNull($response->node);
        self::thrown(Contended::class, static fn () => $client->call('demo.echo', lock: new Lock('k')));
        $client->locks()->release('lock:demo.echo:k', 'me', $response->lock()->fence);
        self::assertSame([], $client->call('demo.echo', lock: new Lock('k', global: true, renew: true)));
    }

    public function testErrorsOfFunctionsAndRequestsAreTyped(): void
    {
        $server = new Server();
        $client = $server->client();
        $error = self::thrown(Rejected::class, static fn () => $client->call('demo.nothing'));
        self::assertSame('FUNCTION_NOT_FOUND', $error->errorCode());
        self::assertFalse($error->mayHaveRun());
        $wrong = static fn () => $client->call('payments.charge', ['user_id' => 'u', 'amount' => 'much']);
        self::assertStringStartsWith('/call/arguments', (string) self::thrown(Rejected::class, $wrong)->pointer());
        $error = self::thrown(FunctionFailed::class, static fn () => $client->call('demo.panic'));
        self::assertSame('INTERNAL_ERROR', $error->errorCode());
        self::assertTrue($error->mayHaveRun());
    }

    public function testADeadlineEndsTheCallOnTheServer(): void
    {
        $server = new Server();
        $client = $server->client();
        $error = self::thrown(
            DeadlineExceeded::class,
            static fn () => $client->call('demo.sleep', ['ms' => 60_000], deadline: 0.3),
        );
        self::assertTrue($error->mayHaveRun());
    }

    public function testACallIsCancelledFromAnotherProcess(): void
    {
        $server = new Server();
        $caller = $server->php(<<<'PHP'
            try {
                $client->call('demo.sleep', ['ms' => 60_000], lock: new Forrst\Lock('k'), cancellation: 'job-17');
            } catch (Forrst\Exception\Cancelled $error) {
                say('cancelled');
            }
            PHP);
        $client = $server->client();
        self::until('it runs', static fn () => $client->locks()->status('lock:demo.sleep:k')->isHeld);
        $client->cancel('job-17');
        self::assertSame('cancelled', $caller->line());
        $error = self::thrown(FunctionFailed::class, static fn () => $client->cancel('job-18'));
        self::assertSame('CANCELLATION_TOKEN_UNKNOWN', $error->errorCode());
    }

    public function testTheStateOfTheServer(): void
    {
        $server = new Server();
        $client = $server->client();
        self::assertGreaterThan(0, $client->ping());
        self::assertSame('healthy', $client->health()['status']);
        self::assertContains('demo.echo', $client->capabilities()['functions']);
        self::assertNotEmpty($client->describe('demo.echo'));
    }

    public function testALargeRequestAndAnswer(): void
    {
        $text = str_repeat('x', 900_000);
        $folder = new Folder();
        $server = new Server(options: ['--unix', "$folder->path/socket"]);
        foreach ([$server->client(), new Client("unix:$folder->path/socket")] as $client) {
            self::assertSame($text, $client->call('demo.echo', ['text' => $text])['text']);
            $tooLarge = static fn () => $client->call('demo.echo', ['text' => "$text$text"], retry: Retry::never());
            self::thrown(\Forrst\Exception\ForrstException::class, $tooLarge);
            self::assertSame([], $client->call('demo.echo'));
        }
    }

    public function testAUnixSocket(): void
    {
        $folder = new Folder();
        $server = new Server(options: ['--unix', "$folder->path/socket"]);
        $client = new Client("unix:$folder->path/socket", 'key-that-is-not-sent');
        $lease = $client->lock('k', watch: true)->acquire();
        self::assertNull($server->client()->lock('k')->tryAcquire());
        $server->client()->locks()->forceRelease('lock:k');
        self::until('the loss is noticed', static fn () => !$lease->isHeld());
        $error = self::thrown(Unreachable::class, static fn () => (new Client("unix:$folder->path/no"))->ping());
        self::assertFalse($error->mayHaveRun());
    }

    public function testTlsAndCertificatesOfClients(): void
    {
        $certificates = new Certificates();
        $server = new Server(options: [
            '--tls-cert', $certificates->server, '--tls-key', $certificates->serverKey,
            '--tls-client-ca', $certificates->authority,
        ]);
        $client = $server->client(
            caFile: $certificates->authority,
            clientCertificate: $certificates->client,
            clientKey: $certificates->clientKey,
        );
        $text = str_repeat('x', 900_000);
        self::assertSame($text, $client->call('demo.echo', ['text' => $text])['text']);
        $caller = $client->lock('k', watch: true)->block(5, function ($lease) use ($client): ?string {
            $lease->sleep(0.05);
            return $client->locks()->status($lease->fullKey)->holder()?->caller;
        });
        self::assertSame('php', $caller);
        // A certificate of nobody that this machine trusts.
        $stranger = $server->client(retry: Retry::never());
        $error = self::thrown(Unreachable::class, static fn () => $stranger->ping());
        self::assertStringContainsString('certificate', $error->getMessage());
        // No certificate of a client.
        $error = self::thrown(
            \Forrst\Exception\ForrstException::class,
            static fn () => $server->client(caFile: $certificates->authority, retry: Retry::never())->ping(),
        );
        self::assertStringNotContainsString('certificate verify failed', $error->getMessage());
    }

    public function testApiKeys(): void
    {
        $folder = new Folder();
        $new = new Process([Server::binary(), 'key', 'new', '--name', 'php', '--role', 'call', '--locks', 'lock:php*']);
        [$key, $file] = [$new->line(), ''];
        while (($line = $new->tryLine()) !== null) {
            $file .= "$line\n";
        }
        file_put_contents("$folder->path/keys.toml", $file);
        $server = new Server(options: ['--auth-file', "$folder->path/keys.toml"]);
        $client = $server->client(apiKey: $key);
        $lease = $client->lock('php:1', ttl: 3600, watch: true)->acquire();
        self::assertTrue($lease->isHeld());
        $lease->release();
        self::thrown(Forbidden::class, static fn () => $client->lock('other')->acquire());
        self::thrown(Forbidden::class, static fn () => $client->locks()->forceRelease('lock:php:1'));
        $error = self::thrown(Unauthorized::class, static fn () => $server->client(apiKey: 'wrong')->lock('k')->acquire());
        self::assertStringNotContainsString('wrong', (string) $error);
        self::thrown(Unauthorized::class, static fn () => $server->client()->lock('k')->acquire());
        foreach ([print_r($client, true), var_export($client, true), print_r($lease, true)] as $dump) {
            self::assertStringNotContainsString($key, $dump);
        }
    }

    public function testAWaiterAndALeaseOutliveARestartOfTheServer(): void
    {
        $folder = new Folder();
        $server = new Server("embedded:$folder->path/data");
        $client = $server->client();
        $lease = $client->lock('k', ttl: 300)->acquire();
        $waiter = $server->php('$client->lock("k")->block(120, fn ($lease) => say($lease->fence));');
        $waits = static fn () => $client->locks()->waiters('lock:k') !== [];
        foreach ([SIGTERM, SIGKILL] as $signal) {
            self::until('it waits', $waits);
            $server->stop($signal);
            $server->startAgain();
        }
        self::until('it waits again', $waits);
        $lease->extend();
        $lease->release();
        self::assertGreaterThan($lease->fence, $waiter->line());
        self::assertSame(0, $waiter->wait());
    }

    public function testAReleaseOutlivesARestartOfTheServer(): void
    {
        $folder = new Folder();
        $server = new Server("embedded:$folder->path/data");
        $holder = $server->php(<<<'PHP'
            $client = new Forrst\Client($url, retry: new Forrst\Retry(within: 120.0));
            $lease = $client->lock('k', ttl: 300)->acquire();
            say('held');
            fgets(STDIN);
            $lease->release();
            say('released');
            PHP);
        self::assertSame('held', $holder->line());
        $server->stop();
        $socket = stream_socket_server(str_replace('http', 'tcp', $server->url));
        $holder->write("\n");
        // More than the usual four tries.
        for ($try = 0; $try < 6; $try++) {
            fclose(stream_socket_accept($socket, Process::PATIENCE));
        }
        fclose($socket);
        $server->startAgain();
        self::assertSame('released', $holder->line());
        self::assertFalse($server->client()->locks()->status('lock:k')->isHeld);
    }

    public function testACallThatWaitsForItsLockOutlivesARestartOfTheServer(): void
    {
        $folder = new Folder();
        $server = new Server("embedded:$folder->path/data");
        $client = $server->client();
        $held = $client->lock('k', ttl: 300)->hold();
        $caller = $server->php(<<<'PHP'
            $lock = new Forrst\Lock('k', wait: 120, global: true);
            say($client->call('demo.echo', ['a' => 'called'], lock: $lock)['a']);
            PHP);
        $waits = static fn () => $client->locks()->waiters('lock:k') !== [];
        self::until('it waits', $waits);
        $server->stop();
        $server->startAgain();
        self::until('it waits again', $waits);
        $client->locks()->release('lock:k', $held->owner);
        self::assertSame('called', $caller->line());
    }

    public function testAForkedProcessHasConnectionsOfItsOwn(): void
    {
        $server = new Server();
        $parent = $server->php(<<<'PHP'
            $client->ping();
            $child = pcntl_fork();
            for ($n = 0; $n < 300; $n++) {
                $client->call('demo.echo', ['from' => getmypid()])['from'] === getmypid() || exit(1);
            }
            if ($child === 0) {
                exit(0);
            }
            pcntl_waitpid($child, $status);
            exit($status === 0 ? 0 : 1);
            PHP);
        self::assertSame(0, $parent->wait());
    }

    public function testAProgramWithManyOpenFiles(): void
    {
        $server = new Server();
        // Descriptors from 1024 on are too large for `select`.
        $program = new Process(['sh', '-c', 'ulimit -n 2048; exec "$@"', 'sh', PHP_BINARY, '-r', <<<'PHP'
            require $argv[1];
            $files = array_map(fn () => fopen('/dev/null', 'r'), range(1, 1100));
            $client = new Forrst\Client($argv[2]);
            exit($client->lock('k', watch: true)->block(5, function ($lease) use ($client) {
                $lease->sleep(0.05);
                return $client->call('demo.sleep', ['ms' => 20]) === null ? 1 : 0;
            }));
            PHP, dirname(__DIR__) . '/autoload.php', $server->url]);
        self::assertSame(0, $program->wait());
    }

    public function testSeveralServersServeOneClient(): void
    {
        $redis = new Redis();
        $servers = [new Server($redis->url), new Server($redis->url)];
        $lease = $servers[0]->client()->lock('k')->acquire();
        $waiter = $servers[1]->php('$client->lock("k")->block(60, fn ($lease) => say($lease->fence));');
        $locks = $servers[1]->client()->locks();
        self::until('it waits', static fn () => $locks->waiters('lock:k') !== []);
        self::assertSame($lease->fence, $locks->status('lock:k')->holder()?->fence);
        $lease->release();
        self::assertGreaterThan($lease->fence, $waiter->line());
        foreach ($servers as $server) {
            $server->stop();
        }
    }

    public function testSleepKeepsTheLeaseBeyondItsTtl(): void
    {
        $server = new Server();
        [$client, $key] = [$server->client(), 'k'];
        $lease = $client->lock($key, ttl: 3)->acquire();
        $lease->sleep(4.5);
        self::assertTrue($lease->isHeld());
        self::assertSame($lease->fence, $client->locks()->status("lock:$key")->holder()?->fence);
        $lease->release();
    }

    public function testAWatchedLeaseIsNotLostByItsOwnExtensionsAndRelease(): void
    {
        $server = new Server();
        [$client, $key] = [$server->client(), 'k'];
        $lease = $client->lock($key, ttl: 1.5, watch: true)->acquire();
        $lease->sleep(1.6);
        $lease->extend();
        self::assertNull($lease->loss());
        $lease->release();
        self::assertNull($lease->loss());
        self::assertFalse($lease->isHeld());
    }

    public function testAWaitLongerThanTheServerAllowsIsSeveralRequests(): void
    {
        $server = new Server(options: ['--max-block', '200ms']);
        $client = $server->client();
        $lease = $client->lock('k')->acquire();
        $waiter = $server->php('$client->lock("k")->block(60, fn () => say("got it"));');
        $seen = static fn () => $client->locks()->waiters('lock:k')[0]->until ?? null;
        self::until('it waits', static fn () => $seen() !== null);
        $first = $seen();
        self::until('it waits again', static fn () => ($seen() ?? $first) > $first);
        $lease->release();
        self::assertSame('got it', $waiter->line());
        self::assertSame(0, $waiter->wait());
        $held = $client->lock('k')->acquire();
        self::thrown(TimedOut::class, static fn () => $client->lock('k', wait: 0.5)->acquire());
        $held->release();
    }

    public function testAServerThatDoesNotExistIsUnreachable(): void
    {
        $server = new Server();
        $client = $server->client(retry: new Retry(attempts: 2, firstPause: 0.001));
        $client->ping();
        $server->stop();
        $error = self::thrown(Unreachable::class, static fn () => $client->call('demo.echo'));
        self::assertFalse($error->mayHaveRun());
    }
}

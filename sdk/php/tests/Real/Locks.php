<?php

declare(strict_types=1);

namespace Forrst\Tests\Real;

use Forrst\Client;
use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\Contended;
use Forrst\Exception\DeadlineExceeded;
use Forrst\Exception\InvalidRequest;
use Forrst\Exception\Lost;
use Forrst\Exception\NotHeld;
use Forrst\Exception\Rejected;
use Forrst\Exception\TimedOut;
use Forrst\Key;
use Forrst\Lease;
use Forrst\Mode;
use Forrst\Tests\Support\Folder;
use Forrst\Tests\Support\Server;
use Forrst\Tests\Support\TestCase;
use Forrst\Withdrawn;
use RuntimeException;

/**
 * Locks of real servers: what is said here is true for every store.
 */
abstract class Locks extends TestCase
{
    protected static Server $server;
    private static int $keys = 0;

    abstract protected static function store(): string;

    public static function setUpBeforeClass(): void
    {
        self::$server = new Server(static::store());
    }

    public static function tearDownAfterClass(): void
    {
        self::$server->stop();
    }

    private static function client(): Client
    {
        return self::$server->client();
    }

    private static function key(): string
    {
        return 'key:' . ++self::$keys;
    }

    public function testTheBodyOfBlockRunsUnderTheLockAndItsResultIsReturned(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $result = $client->lock($key, ttl: 30)->block(5, function (Lease $lease) use ($client, $key): string {
            self::assertMatchesRegularExpression('/^\d{15}$/', $lease->fence);
            self::assertTrue($lease->isHeld());
            self::assertGreaterThan(0, $lease->remaining());
            self::assertLessThan(30, $lease->remaining());
            $status = $client->locks()->status($lease->fullKey);
            self::assertSame($lease->fence, $status->holder()?->fence);
            self::assertSame($lease->owner, $status->holder()->owner);
            self::assertSame(Mode::Exclusive, $status->mode);
            self::assertNull($client->lock($key)->tryAcquire());
            self::thrown(Contended::class, fn () => $client->lock($key)->acquire());
            return 'done';
        });
        self::assertSame('done', $result);
        self::assertFalse($client->locks()->status("lock:$key")->isHeld);
    }

    public function testTheLockIsReleasedWhenTheBodyFailsAndItsErrorIsThrown(): void
    {
        [$client, $key] = [self::client(), self::key()];
        try {
            $client->withLock($key, static fn () => throw new RuntimeException('the body'), ttl: 30, wait: 5);
            self::fail('nothing was thrown');
        } catch (RuntimeException $error) {
            self::assertSame('the body', $error->getMessage());
        }
        self::assertFalse($client->locks()->status("lock:$key")->isHeld);
    }

    public function testALossIsReportedEvenIfTheBodySucceeds(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $error = self::thrown(Lost::class, static fn () => $client->withLock($key, static function (Lease $lease) use ($client) {
            return $client->locks()->forceRelease($lease->fullKey);
        }));
        self::assertTrue($error->loss->isProven);
    }

    public function testAWaiterGetsTheLockWhenItIsReleasedWithAHigherFence(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key)->acquire();
        $waiter = self::$server->php("\$client->lock('$key')->block(60, fn (\$lease) => say(\$lease->fence));");
        self::until('the waiter is in the queue', fn () => count($client->locks()->waiters("lock:$key")) === 1);
        self::assertSame(1, $client->locks()->waiters("lock:$key")[0]->position);
        $lease->release();
        self::assertGreaterThan($lease->fence, $waiter->line());
        self::assertSame(0, $waiter->wait());
    }

    public function testAWaitThatEndsIsTimedOut(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key)->acquire();
        $error = self::thrown(TimedOut::class, static fn () => $client->lock($key)->block(0.05));
        self::assertSame('LOCK_TIMEOUT', $error->errorCode());
        self::assertSame(["lock:$key"], $error->details()['blocked_by']);
        self::assertNull($client->lock($key, wait: 0.05)->tryAcquire());
        $lease->release();
    }

    public function testKindsOfLocks(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $readers = [$client->lock($key, shared: true)->acquire(), $client->lock($key, shared: true)->acquire()];
        self::assertNull($client->lock($key)->tryAcquire());
        $status = $client->locks()->status("lock:$key");
        self::assertSame([Mode::Shared, 2, 2], [$status->mode, $status->holderCount, count($status->holders)]);
        foreach ($readers as $reader) {
            $reader->release();
        }
        $slots = [$client->lock($key, limit: 2)->acquire(), $client->lock($key, limit: 2)->acquire()];
        self::assertNull($client->lock($key, limit: 2)->tryAcquire());
        $status = $client->locks()->status("lock:$key");
        self::assertSame([null, 2, 0], [$status->mode, $status->limit, $status->available]);
        foreach ($slots as $slot) {
            $slot->release();
        }
    }

    public function testSeveralKeysAreOneLease(): void
    {
        $client = self::client();
        [$a, $b, $c] = [self::key(), self::key(), self::key()];
        $lease = $client->lock([$a, Key::shared($b), Key::limit($c, 2)], note: 'a set')->acquire();
        self::assertSame(["lock:$a", "lock:$b", "lock:$c"], $lease->fullKeys);
        self::assertSame('a set', $client->locks()->status("lock:$b")->holder()?->note);
        self::assertNotNull($client->lock($b, shared: true)->tryAcquire());
        $lease->release();
        self::assertFalse($client->locks()->status("lock:$a")->isHeld);
    }

    public function testALeaseIsExtendedAndKeepsItsFence(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key, ttl: 20)->acquire();
        $lease->extend(3600);
        self::assertGreaterThan(1800, $lease->remaining());
        self::assertLessThan(3600 * 0.99, $lease->remaining());
        self::assertSame($lease->fence, $client->locks()->status("lock:$key")->holder()?->fence);
        $ends = $client->locks()->extend("lock:$key", $lease->owner, 30);
        self::assertGreaterThan(0, $ends->getTimestamp());
        $lease->release();
    }

    public function testAForcedReleaseIsNoticedAtOnceByALeaseThatWatches(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $holder = self::$server->php(<<<PHP
            \$lease = \$client->lock('$key', ttl: 3600, watch: true)->acquire();
            say('held');
            try {
                \$lease->sleep(3000);
            } catch (Forrst\\Exception\\Lost \$error) {
                say(\$lease->isHeld() ? 'still held' : \$error->loss->message);
            }
            PHP);
        self::assertSame('held', $holder->line());
        self::assertSame(1, $client->locks()->forceRelease("lock:$key"));
        // Its next renewal would be in twenty minutes.
        self::assertSame('the lease has ended on the server', $holder->line());
        self::assertSame(0, $holder->wait());
    }

    public function testALostLeaseStaysLost(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key, ttl: 60)->acquire();
        $client->locks()->forceRelease("lock:$key");
        self::thrown(Lost::class, static fn () => $lease->extend());
        self::assertFalse($lease->isHeld());
        self::assertSame(0.0, $lease->remaining());
        $next = $client->lock($key, owner: $lease->owner)->acquire();
        foreach ([$lease->check(...), $lease->extend(...), $lease->release(...)] as $method) {
            self::thrown(Lost::class, $method);
        }
        unset($lease);
        self::assertTrue($client->locks()->status("lock:$key")->isHeld, 'the next holder keeps its lock');
        $next->release();
    }

    public function testALeaseThatExpiresIsLostHereFirst(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key, ttl: 1)->acquire();
        self::until('it is lost', fn () => !$lease->isHeld());
        self::assertFalse($lease->loss()?->isProven);
        self::assertGreaterThan($lease->fence, $client->lock($key)->block(30)->fence);
        self::thrown(Lost::class, static fn () => $lease->release());
    }

    public function testASecondReleaseDoesNothing(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key)->acquire();
        $lease->release();
        $next = $client->lock($key)->acquire();
        $lease->release();
        self::assertTrue($next->isHeld());
        self::assertTrue($client->locks()->status("lock:$key")->isHeld);
        $next->release();
    }

    public function testALeaseThatGoesOutOfScopeIsReleased(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key)->acquire();
        unset($lease);
        self::assertFalse($client->locks()->status("lock:$key")->isHeld);
    }

    public function testALeaseIsReleasedWhenItsProgramEnds(): void
    {
        [$client, $key] = [self::client(), self::key()];
        self::assertSame(0, self::$server->php("\$lease = \$client->lock('$key', ttl: 3600)->acquire();")->wait());
        self::assertFalse($client->locks()->status("lock:$key")->isHeld);
    }

    public function testALeaseIsNotReleasedByAForkOfItsHolder(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $holder = self::$server->php(<<<PHP
            \$lease = \$client->lock('$key', ttl: 3600)->acquire();
            \$child = pcntl_fork();
            if (\$child === 0) {
                // Its own connection, too.
                exit(\$client->locks()->status('lock:$key')->isHeld ? 0 : 1);
            }
            pcntl_waitpid(\$child, \$status);
            say(\$status === 0 && \$client->locks()->status('lock:$key')->isHeld ? 'held' : 'released');
            PHP);
        self::assertSame('held', $holder->line());
        self::assertSame(0, $holder->wait());
    }

    public function testAKeptLockIsReleasedByItsOwnerTokenInAnotherProcess(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $held = $client->lock($key, owner: 'me')->hold();
        self::assertSame('me', $held->owner);
        $process = self::$server->php("\$client->locks()->release('lock:$key', 'me'); say('released');");
        self::assertSame('released', $process->line());
        self::thrown(AlreadyReleased::class, fn () => $client->locks()->release("lock:$key", 'me', $held->fence));
        self::thrown(NotHeld::class, fn () => $client->locks()->release('lock:never', 'me'));
        $lease = $client->lock($key)->acquire();
        $kept = $lease->keep();
        unset($lease);
        self::assertTrue($client->locks()->status("lock:$key")->isHeld);
        $client->locks()->release("lock:$key", $kept->owner);
    }

    public function testTheSameAttemptGetsTheSameLease(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lock = $client->lock($key, owner: 'me', attempt: 'job-1');
        $first = $lock->hold();
        self::assertSame($first->fence, $lock->hold()->fence);
        self::assertSame(Withdrawn::Held, $client->locks()->withdraw("lock:$key", 'me', 'job-1'));
        self::assertFalse($client->locks()->status("lock:$key")->isHeld);
        self::assertSame(Withdrawn::Unknown, $client->locks()->withdraw("lock:$key", 'me', 'job-2'));
    }

    public function testALockOfAFunctionIsNotTheGlobalOne(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key, function: 'payments.charge')->acquire();
        self::assertSame("lock:payments.charge:$key", $lease->fullKey);
        self::assertNotNull($client->lock($key)->tryAcquire());
        $lease->release();
    }

    public function testASignalThatEndsAWaitLeavesNeitherAWaiterNorALease(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key)->acquire();
        $waiter = self::$server->php(<<<PHP
            pcntl_async_signals(true);
            pcntl_signal(SIGTERM, fn () => throw new RuntimeException('stop'));
            try {
                \$client->lock('$key', ttl: 3600)->block(120);
            } catch (RuntimeException \$error) {
                say(\$error->getMessage());
            }
            PHP);
        self::until('it waits', fn () => $client->locks()->waiters("lock:$key") !== []);
        $waiter->signal(SIGTERM);
        self::assertSame('stop', $waiter->line());
        self::assertSame(0, $waiter->wait());
        self::until('the queue is empty', fn () => $client->locks()->waiters("lock:$key") === []);
        $lease->release();
        self::assertFalse($client->locks()->status("lock:$key")->isHeld);
    }

    public function testADeadlineEndsTheWait(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $lease = $client->lock($key)->acquire();
        self::thrown(DeadlineExceeded::class, static fn () => $client->lock($key, wait: 60, deadline: 0.3)->acquire());
        self::assertTrue($client->settle(30));
        self::until('the queue is empty', fn () => $client->locks()->waiters("lock:$key") === []);
        $lease->release();
    }

    public function testLocksAreListedByPrefix(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $leases = array_map(fn (int $n) => $client->lock("$key/$n")->acquire(), [1, 2, 3]);
        $page = $client->locks()->list("lock:$key/", limit: 2);
        self::assertCount(2, $page->locks);
        self::assertCount(1, $client->locks()->list("lock:$key/", cursor: $page->cursor)->locks);
        self::assertCount(3, iterator_to_array($client->locks()->listAll("lock:$key/")));
        self::assertSame(["lock:$key/1"], $leases[0]->fullKeys);
    }

    public function testWatchAnswersWhenTheLeasesChange(): void
    {
        [$client, $key] = [self::client(), self::key()];
        $before = $client->locks()->watch("lock:$key");
        self::assertFalse($before->isHeld);
        self::assertSame($before->revision, $client->locks()->watch("lock:$key", $before->revision, wait: 0.05)->revision);
        $held = $client->lock($key)->hold();
        $after = $client->locks()->watch("lock:$key", $before->revision);
        self::assertSame($held->fence, $after->holder()?->fence);
        self::assertNotSame($before->revision, $after->revision);
    }

    public function testAWrongRequestNamesTheField(): void
    {
        $error = self::thrown(Rejected::class, static fn () => self::client()->lock('', ttl: 30)->acquire());
        self::assertSame('/call/arguments/key', $error->pointer());
        $error = self::thrown(InvalidRequest::class, static fn () => self::client()->lock('k', ttl: NAN));
        self::assertStringContainsString('ttl', $error->getMessage());
        self::thrown(InvalidRequest::class, static fn () => self::client()->lock("\xff")->acquire());
    }

    public function testContendersNeverOverlapAndTheirFencesGrow(): void
    {
        $key = self::key();
        $folder = new Folder();
        $code = <<<PHP
            for (\$n = 0; \$n < 25; \$n++) {
                \$client->lock('$key', ttl: 60)->block(60, function (\$lease) {
                    \$file = fopen('{$folder->path}/fences', 'c+');
                    // Another holder at the same time would have this lock.
                    flock(\$file, LOCK_EX | LOCK_NB) || exit(1);
                    fseek(\$file, 0, SEEK_END);
                    fwrite(\$file, \$lease->fence . "\\n");
                    fclose(\$file);
                });
            }
            PHP;
        $contenders = array_map(fn () => self::$server->php($code), range(1, 4));
        foreach ($contenders as $contender) {
            self::assertSame(0, $contender->wait());
        }
        $fences = file("$folder->path/fences", FILE_IGNORE_NEW_LINES);
        self::assertCount(100, $fences);
        $sorted = $fences;
        sort($sorted);
        self::assertSame(array_values(array_unique($sorted)), $fences);
    }
}

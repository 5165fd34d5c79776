<?php

declare(strict_types=1);

namespace Forrst;

use DateTimeImmutable;
use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\NotUnderstood;
use Forrst\Internal\Connector;
use Forrst\Internal\Duration;
use Forrst\Internal\Tries;
use Generator;

/**
 * Operations on locks by their full keys (`lock:…`), for operators and for leases that this process does not hold.
 */
final class Locks
{
    private const MAX_PAGE_SIZE = 1000;

    /** @internal use {@see Client::locks()} */
    public function __construct(private readonly Connector $connector)
    {
    }

    /** Whether the lock is held, and by which leases. */
    public function status(string $fullKey): LockStatus
    {
        return LockStatus::fromResult($this->ask('status', ['key' => $fullKey]));
    }

    /**
     * The status as soon as the leases on the lock change; at once if `$since` is not the `revision` of the present ones.
     *
     * @param int|float|null $wait for how many seconds to wait for a change; 30 by default
     * @param string|null $owner that of a lease, to watch it without the right to watch others
     */
    public function watch(
        string $fullKey,
        ?string $since = null,
        int|float|null $wait = null,
        ?string $owner = null,
    ): LockStatus {
        $arguments = ['key' => $fullKey, 'since' => $since, 'owner' => $owner];
        if ($wait !== null) {
            $arguments['wait'] = Duration::toWire(Duration::given($wait, 'wait'));
        }
        return LockStatus::fromResult($this->ask('watch', $arguments, $this->connector->timeout + ($wait ?? 30)));
    }

    /**
     * Releases a lock with its owner token; with a fence, only the lease that has it. Any key of a lock on several will do.
     *
     * @throws Exception\NotHeld when it is not held
     * @throws Exception\AlreadyReleased when this owner's lease was released before
     * @throws Exception\Mismatch when another owner or lease holds it
     */
    public function release(string $fullKey, string $owner, ?string $fence = null): void
    {
        $tries = new Tries($this->connector->retry);
        try {
            $this->ask('release', ['key' => $fullKey, 'owner' => $owner, 'fence' => $fence], tries: $tries);
        } catch (AlreadyReleased $error) {
            if (!$tries->hasLostAnswer()) {
                throw $error;
            }
        }
    }

    /**
     * Extends a lease: it ends `$ttl` seconds from now, which may also be earlier. Returns when that is, by the server's clock.
     *
     * @throws Exception\NotHeld when it has expired: that is not revived
     */
    public function extend(string $fullKey, string $owner, int|float $ttl, ?string $fence = null): DateTimeImmutable
    {
        $ttl = Duration::toWire(Duration::given($ttl, 'ttl'));
        $extended = $this->ask('extend', ['key' => $fullKey, 'owner' => $owner, 'ttl' => $ttl, 'fence' => $fence]);
        return Held::time($extended['expires_at'] ?? null);
    }

    /**
     * Ends every lease on a key, of any owner, or only that with the fence, if one is named. Returns how many it has ended.
     *
     * Without a fence it is not retried after a lost answer: it could end the lease of the next holder.
     *
     * @throws Exception\NotHeld when the lock is free
     * @throws Exception\Forbidden for a caller that may not do this
     */
    public function forceRelease(string $fullKey, ?string $fence = null): int
    {
        $tries = new Tries($this->connector->retry, mayRunTwice: $fence !== null);
        $forced = $this->ask('force-release', ['key' => $fullKey, 'fence' => $fence], tries: $tries);
        // A server with only the bare extension has one lease on a key, and does not count.
        return is_int($forced['leases'] ?? null) ? $forced['leases'] : 1;
    }

    /** Withdraws an attempt whose outcome is not known, whatever it was. */
    public function withdraw(string $fullKey, string $owner, string $attempt): Withdrawn
    {
        $answer = $this->ask('withdraw', ['key' => $fullKey, 'owner' => $owner, 'attempt' => $attempt]);
        return Withdrawn::tryFrom((string) ($answer['was'] ?? ''))
            ?? throw new NotUnderstood('the answer to `withdraw` does not say what the attempt had');
    }

    /**
     * The callers that wait for a lock, the next one first.
     *
     * @return list<Waiter>
     */
    public function waiters(string $fullKey, ?int $limit = null): array
    {
        $answer = $this->ask('waiters', ['key' => $fullKey, 'limit' => $limit]);
        return array_map(Waiter::fromData(...), array_values(self::rows($answer, 'waiters')));
    }

    /** A page of the held locks whose full key starts with the prefix, from the cursor of the page before. */
    public function list(string $prefix = '', ?int $limit = null, ?string $cursor = null): Page
    {
        $answer = $this->ask('list', ['prefix' => $prefix, 'limit' => $limit, 'cursor' => $cursor]);
        $locks = array_map(LockStatus::fromResult(...), array_values(self::rows($answer, 'locks')));
        return new Page($locks, is_string($answer['cursor'] ?? null) ? $answer['cursor'] : null);
    }

    /**
     * All held locks whose full key starts with the prefix, page after page. This is not a snapshot.
     *
     * @return Generator<int, LockStatus>
     */
    public function listAll(string $prefix = ''): Generator
    {
        $cursor = null;
        do {
            $page = $this->list($prefix, self::MAX_PAGE_SIZE, $cursor);
            foreach ($page->locks as $lock) {
                yield $lock;
            }
            $cursor = $page->cursor;
        } while ($cursor !== null);
    }

    /** @param array<string, mixed> $arguments those that are null are not sent */
    private function ask(string $function, array $arguments, ?float $patience = null, ?Tries $tries = null): mixed
    {
        $this->connector->background->runDue();
        $arguments = array_filter($arguments, static fn (mixed $value): bool => $value !== null);
        return $this->connector->ask(Connector::LOCKS . $function, $arguments, $tries, $patience);
    }

    /** @return array<mixed> */
    private static function rows(mixed $answer, string $name): array
    {
        $rows = $answer[$name] ?? null;
        return is_array($rows) ? $rows : throw new NotUnderstood("the answer has no `$name`");
    }
}

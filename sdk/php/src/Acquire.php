<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\Contended;
use Forrst\Exception\ForrstException;
use Forrst\Exception\Lost;
use Forrst\Exception\TimedOut;
use Forrst\Internal\Acquisition;
use Forrst\Internal\Clock;
use Forrst\Internal\Connector;
use Forrst\Internal\Duration;
use Forrst\Internal\Grant;
use Forrst\Internal\Keys;
use Forrst\Internal\Uuid;
use Throwable;

/**
 * A lock for work that runs here, as {@see Client::lock()} describes it. Nothing is sent before it is acquired, and each
 * acquisition is a new one.
 */
final class Acquire
{
    private readonly float $ttl;
    private readonly ?float $wait;
    private readonly ?float $deadline;

    /**
     * @internal use {@see Client::lock()}
     * @param string|list<string|Key> $key
     */
    public function __construct(
        private readonly Connector $connector,
        private readonly string|array $key,
        int|float $ttl,
        int|float|null $wait,
        private readonly bool $shared,
        private readonly ?int $limit,
        private readonly ?string $owner,
        private readonly ?string $note,
        private readonly ?string $function,
        private readonly ?string $attempt,
        int|float|null $deadline,
        private readonly bool $watch,
        private readonly ?Retry $retry,
    ) {
        $this->ttl = Duration::given($ttl, 'ttl');
        $this->wait = $wait === null ? null : Duration::given($wait, 'wait');
        $this->deadline = $deadline === null ? null : Duration::given($deadline, 'deadline');
    }

    /**
     * Takes the lock.
     *
     * @throws Contended when it is held, and there is no `wait`
     * @throws TimedOut when it was held for the whole `wait`
     * @throws Lost when the lease had ended before its grant was known here
     */
    public function acquire(): Lease
    {
        return Lease::begin($this->connector, $this->granted($this->wait), $this->ttl, $this->watch);
    }

    /** Takes the lock; null if it is held, for as long as this may wait. */
    public function tryAcquire(): ?Lease
    {
        try {
            return $this->acquire();
        } catch (Contended | TimedOut) {
            return null;
        }
    }

    /**
     * Takes the lock, calls `$body` with the lease, and releases the lock when it has ended.
     *
     * @template T
     * @param callable(Lease): T $body
     * @return T
     * @throws Lost when the lease was lost before the end of the body, even if that has succeeded
     */
    public function run(callable $body): mixed
    {
        return self::runWith($this->acquire(), $body);
    }

    /**
     * Waits in the queue for so many seconds. Without a body, it returns the lease; with one, it calls it with the lease, releases the
     * lock, and returns what the body has returned.
     *
     * @template T
     * @param (callable(Lease): T)|null $body
     * @return ($body is null ? Lease : T)
     * @throws TimedOut when it was held all the time
     */
    public function block(int|float $seconds, ?callable $body = null): mixed
    {
        $granted = $this->granted(Duration::given($seconds, 'seconds'));
        $lease = Lease::begin($this->connector, $granted, $this->ttl, $this->watch);
        return $body === null ? $lease : self::runWith($lease, $body);
    }

    /**
     * Takes the lock, and neither renews nor releases it: it ends when it expires, or with {@see Locks::release()}, in any process.
     */
    public function hold(): Held
    {
        return $this->granted($this->wait)->held;
    }

    private function granted(?float $wait): Grant
    {
        $optional = ['function' => $this->function, 'note' => $this->note];
        $arguments = Keys::toWire($this->key, $this->shared, $this->limit)
            + array_filter($optional, static fn (?string $value): bool => $value !== null)
            + ['owner' => $this->owner ?? Uuid::random(), 'attempt' => $this->attempt ?? Uuid::random()];
        $acquisition = new Acquisition(
            $this->connector,
            $arguments,
            'lock:' . ($this->function === null ? '' : "$this->function:") . Keys::first($this->key),
            $this->ttl,
            $wait,
            $this->deadline === null ? null : Clock::now() + $this->deadline,
            $this->retry ?? $this->connector->retry,
        );
        return $acquisition->run();
    }

    private static function runWith(Lease $lease, callable $body): mixed
    {
        try {
            $result = $body($lease);
        } catch (Throwable $error) {
            try {
                $lease->release();
            } catch (ForrstException) {
                // The error of the body says more.
            }
            throw $error;
        }
        $lease->release();
        return $result;
    }
}

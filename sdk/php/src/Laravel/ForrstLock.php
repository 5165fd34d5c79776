<?php

declare(strict_types=1);

namespace Forrst\Laravel;

use Forrst\Client;
use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\Contended;
use Forrst\Exception\Lost;
use Forrst\Exception\Mismatch;
use Forrst\Exception\NotHeld;
use Forrst\Exception\TimedOut;
use Forrst\Lease;
use Illuminate\Cache\Lock;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Throwable;

/**
 * A lock of Laravel's cache that the server of Forrst keeps. {@see block()} waits in the queue of the server instead of polling.
 *
 * As with Laravel's own locks, it is the lock that lives on, not this object: it is held until it is released or expires.
 */
final class ForrstLock extends Lock
{
    /** The lease, if this object has taken the lock. */
    private ?Lease $lease = null;

    /**
     * @param string $name with the prefix
     * @param int $seconds 0 means no end, as far as a server of Forrst has such locks: `$longest`
     * @param int|float $longest
     */
    public function __construct(
        private readonly Client $client,
        string $name,
        int $seconds,
        ?string $owner,
        private readonly int|float $longest,
        private readonly ?string $note,
    ) {
        parent::__construct($name, $seconds, $owner);
    }

    /** Takes the lock, unless it is held. */
    public function acquire(): bool
    {
        try {
            $this->take(null);
            return true;
        } catch (Contended) {
            return false;
        }
    }

    /**
     * Waits for the lock in the queue of the server.
     *
     * @param int $seconds
     * @param callable|null $callback
     * @throws LockTimeoutException when it was held all the time
     */
    public function block($seconds, $callback = null): mixed
    {
        try {
            $this->take($seconds > 0 ? (float) $seconds : null);
        } catch (TimedOut | Contended $error) {
            throw new LockTimeoutException($error->getMessage(), 0, $error);
        }
        if (!is_callable($callback)) {
            return true;
        }
        try {
            $result = $callback();
        } catch (Throwable $error) {
            try {
                $this->release();
            } catch (Throwable) {
                // The error of the callback says more.
            }
            throw $error;
        }
        $this->release();
        return $result;
    }

    /** Releases the lock. False if its owner no longer holds it: it has expired, or was released by force. */
    public function release(): bool
    {
        $lease = $this->lease;
        $this->lease = null;
        try {
            if ($lease?->loss() === null && $lease !== null) {
                $lease->release();
            } else {
                // It may last a little longer on the server than here.
                $this->client->locks()->release($this->fullKey(), $this->owner, $lease?->fence);
            }
            return true;
        } catch (Lost | NotHeld | Mismatch | AlreadyReleased) {
            return false;
        }
    }

    /** Releases the lock of any owner. With API keys, that needs the role `admin`. */
    public function forceRelease(): void
    {
        $this->lease = null;
        try {
            $this->client->locks()->forceRelease($this->fullKey());
        } catch (NotHeld) {
            // It is free, as it should be.
        }
    }

    /** Extends the lock: it ends so many seconds from now; by default, as many as it was taken for. False if it is not held. */
    public function extend(?int $seconds = null): bool
    {
        $ttl = $this->ttl($seconds ?? (int) $this->seconds);
        try {
            if ($this->lease !== null) {
                $this->lease->extend($ttl);
            } else {
                $this->client->locks()->extend($this->fullKey(), $this->owner, $ttl);
            }
            return true;
        } catch (Lost | NotHeld | Mismatch | AlreadyReleased) {
            return false;
        }
    }

    /** The lease, with its fence and what is left of its time; null if this object has not taken the lock. */
    public function lease(): ?Lease
    {
        return $this->lease;
    }

    /** The fencing token, for the resource that the lock protects; null if this object has not taken the lock. */
    public function fence(): ?string
    {
        return $this->lease?->fence;
    }

    /** Whether the server says that the owner of this object holds the lock. */
    public function isOwnedByCurrentProcess(): bool
    {
        return $this->isOwnedBy($this->owner);
    }

    /**
     * Whether the server says that this owner holds the lock.
     *
     * @param string $owner
     */
    public function isOwnedBy($owner): bool
    {
        // Not `status`, which needs the right to observe all locks.
        foreach ($this->client->locks()->watch($this->fullKey(), owner: $owner)->holders as $holder) {
            if ($holder->owner === $owner) {
                return true;
            }
        }
        return false;
    }

    /** The owner of the lock, or null. It needs the right to observe locks; the owners of other callers are shown as hashes. */
    protected function getCurrentOwner(): ?string
    {
        return $this->client->locks()->status($this->fullKey())->holder()?->owner;
    }

    private function take(?float $wait): void
    {
        $lock = $this->client->lock($this->name, $this->ttl((int) $this->seconds), $wait, owner: $this->owner, note: $this->note);
        $this->lease = $lock->acquire();
        $this->lease->detach();
    }

    private function ttl(int $seconds): int|float
    {
        return $seconds > 0 ? $seconds : $this->longest;
    }

    private function fullKey(): string
    {
        return "lock:$this->name";
    }
}

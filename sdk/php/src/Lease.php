<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\ForrstException;
use Forrst\Exception\Lost;
use Forrst\Internal\Clock;
use Forrst\Internal\Connection;
use Forrst\Internal\Connector;
use Forrst\Internal\Duration;
use Forrst\Internal\Grant;
use Forrst\Internal\Tenure;
use Forrst\Internal\Term;
use Forrst\Internal\Tries;
use Forrst\Internal\Watcher;

/**
 * A lock that is held here.
 *
 * This machine's clock alone decides whether it is still held: a lease ends here no later than on the server, because its time
 * counts from before the request was sent. A later answer changes nothing: a lost lease stays lost. A process that was stopped for
 * too long finds its lease lost when it continues.
 *
 * PHP runs nothing in the background, so a lease lives for its `ttl`, unless its holder calls {@see check()} now and then, which
 * also renews it, or {@see sleep()} instead of PHP's own, or {@see extend()}.
 *
 * A lease that goes out of scope is released.
 */
final class Lease
{
    /** How long a release without a caller is retried at least. */
    private const MIN_RELEASE_TIME = 2.0;

    private const LONGEST_PAUSE = 1.0;

    /** The fencing token, for the resource that the lock protects: 15 digits, which sort as text. Renewals do not change it. */
    public readonly string $fence;

    /** The token that releases and extends it. */
    public readonly string $owner;

    /** The full key of the lock; the first, for a lock on several keys. */
    public readonly string $fullKey;

    /** @var non-empty-list<string> The full keys of the lock, in the order in which they were requested. */
    public readonly array $fullKeys;

    private readonly Tenure $tenure;

    /** Whether it still has to be released. */
    private bool $isOurs = true;

    private bool $isDetached = false;

    /** Whether a release without an answer may have ended it. */
    private bool $mayBeReleased = false;

    /** No renewal before that time, since one has failed just now. */
    private float $pauseUntil = 0.0;

    private function __construct(
        private readonly Connector $connector,
        private readonly Held $held,
        Term $term,
        private float $ttl,
        private readonly ?Watcher $watcher,
    ) {
        $this->fence = $held->fence;
        $this->owner = $held->owner;
        $this->fullKey = $held->fullKey;
        $this->fullKeys = $held->fullKeys;
        $this->tenure = new Tenure($term);
    }

    /**
     * Makes sure that the granted lock is still held.
     *
     * @internal
     */
    public static function begin(Connector $connector, Grant $grant, float $ttl, bool $watch): self
    {
        $watcher = $watch ? new Watcher($connector, $grant->held) : null;
        $lease = new self($connector, $grant->held, $grant->term($ttl), $ttl, $watcher);
        $lease->ensureFresh();
        $watcher?->poll();
        return $lease;
    }

    /**
     * Extends the lease unless half of it is known to be left: it may have been granted to an earlier try, or during a wait by a
     * server that does not say what is left.
     */
    private function ensureFresh(): void
    {
        if ($this->tenure->term()->until - Clock::now() > $this->ttl / 2) {
            return;
        }
        $tries = new Tries($this->connector->retry);
        while (true) {
            try {
                $this->tenure->setFirstTerm($this->sendExtend($this->ttl, $this->ttl));
                return;
            } catch (ForrstException $error) {
                if (($loss = Loss::fromError($error)) !== null) {
                    $this->isOurs = false;
                    throw new Lost($loss, $error);
                }
            }
            $pause = $tries->pauseAfter($error);
            if ($pause === null) {
                // What is left may be enough: later renewals try again.
                if ($this->isHeld()) {
                    return;
                }
                throw $error;
            }
            usleep((int) ($pause * 1e6));
        }
    }

    /** Whether it is certainly held. It sends nothing. */
    public function isHeld(): bool
    {
        $this->watch();
        return $this->tenure->isHeld(Clock::now());
    }

    /** Why it is lost; null as long as it is held, and if it was released or kept. */
    public function loss(): ?Loss
    {
        $this->watch();
        return $this->tenure->loss(Clock::now());
    }

    /** For how many more seconds it is certainly held. */
    public function remaining(): float
    {
        return $this->isHeld() ? max(0.0, $this->tenure->term()->until - Clock::now()) : 0.0;
    }

    /**
     * Makes sure that it is held, and renews it if a third of its `ttl` has passed: for loops that take longer than the `ttl`.
     *
     * Most calls send nothing. A renewal that fails is tried again by later calls, until the lease ends.
     *
     * @throws Lost when the lease has ended
     */
    public function check(): void
    {
        $this->throwIfLost();
        $isDue = Clock::now() >= $this->nextRenewal() || $this->watcher?->isInDoubt === true;
        if ($this->tenure->hasEnded() || !$isDue) {
            return;
        }
        if ($this->watcher !== null) {
            $this->watcher->isInDoubt = false;
        }
        try {
            // Short enough that several tries are left after one that is never answered.
            $patience = min($this->ttl / 6, max(0.001, $this->tenure->term()->until - Clock::now()));
            $this->tenure->extend($this->sendExtend($this->ttl, $patience), Clock::now());
        } catch (ForrstException $error) {
            $this->noteFailure($error);
            $pause = min($this->ttl / 24, self::LONGEST_PAUSE);
            $this->pauseUntil = Clock::now() + $pause / 2 + $pause / 2 * mt_rand() / mt_getrandmax();
        }
        $this->throwIfLost();
    }

    /**
     * Sleeps, and keeps the lease meanwhile.
     *
     * @throws Lost as soon as the lease is lost: after a forced release within a second if the lock was taken with `watch: true`,
     *   otherwise with the next renewal
     */
    public function sleep(int|float $seconds): void
    {
        $end = Clock::now() + Duration::given($seconds, 'seconds');
        while (true) {
            $this->check();
            $now = Clock::now();
            if ($now >= $end) {
                return;
            }
            $next = $this->tenure->hasEnded() ? INF : min($this->nextRenewal(), $this->tenure->term()->until);
            $stream = $this->watcher?->stream();
            Connection::select($stream === null ? [] : [$stream], [], max(0.0005, min($end, $next) - $now));
        }
    }

    /**
     * Extends the lease: it ends `$ttl` seconds from now, which may also be earlier; by default, its own `ttl`. That is also the
     * `ttl` of later renewals.
     *
     * @throws Lost when the lease has ended
     */
    public function extend(int|float|null $ttl = null): void
    {
        $this->throwIfLost();
        $ttl = $ttl === null ? $this->ttl : Duration::given($ttl, 'ttl');
        $tries = new Tries($this->connector->retry, deadline: $this->tenure->term()->until);
        while (true) {
            try {
                $left = $this->tenure->term()->until - Clock::now();
                $this->tenure->extend($this->sendExtend($ttl, max(0.001, $left)), Clock::now());
                $this->ttl = $ttl;
                $this->throwIfLost();
                return;
            } catch (Lost $lost) {
                throw $lost;
            } catch (ForrstException $error) {
                $this->noteFailure($error);
                $this->throwIfLost($error);
                $tries->after($error);
            }
        }
    }

    /**
     * Releases the lock. A second release does nothing.
     *
     * @throws Lost when the lease was lost before: another client may have held the lock since
     */
    public function release(): void
    {
        $this->throwIfLost();
        $this->watcher?->stop();
        if (!$this->isOurs) {
            return;
        }
        $until = $this->tenure->term()->until;
        // Whatever comes of it, the holder is done. After its end there is nothing to release.
        $this->tenure->end(Clock::now());
        // A restart of the server for some seconds must not make work fail that is done.
        $retry = $this->connector->retry;
        $tries = new Tries($retry, deadline: $until, wait: $retry->within);
        try {
            $this->connector->ask(Connector::LOCKS . 'release', $this->arguments(), $tries);
        } catch (ForrstException $error) {
            $loss = Loss::fromError($error);
            $mayBeDone = $this->mayBeReleased || $tries->hasLostAnswer();
            if ($loss === null) {
                $this->mayBeReleased = $mayBeDone || $error->mayHaveRun();
                throw $error;
            }
            $this->isOurs = false;
            // A lease that cannot have expired yet was ended by an earlier try, whose answer was lost.
            if (!$mayBeDone || (Clock::now() >= $until && !$error instanceof AlreadyReleased)) {
                $this->tenure->loseAtRelease($loss);
                throw new Lost($loss, $error);
            }
        }
        $this->isOurs = false;
    }

    /** Leaves the lock held when this lease goes out of scope, or its process ends. Otherwise the lease stays as it is. */
    public function detach(): void
    {
        $this->isDetached = true;
    }

    /** Is done with the lease without releasing the lock: that ends when it expires, or is released with its owner token. */
    public function keep(): Held
    {
        $this->watcher?->stop();
        $this->isOurs = false;
        $this->tenure->end(Clock::now());
        return $this->held;
    }

    /** Releases it: once now, and otherwise whenever the client is used. */
    public function __destruct()
    {
        $this->watcher?->stop();
        if (!$this->isOurs || $this->isDetached) {
            return;
        }
        // A lease that has ended here may last a little longer on the server, so there is at least one try.
        $time = max($this->remaining(), self::MIN_RELEASE_TIME);
        [$connector, $arguments] = [$this->connector, $this->arguments()];
        $connector->background->add(static function (float $until) use ($connector, $arguments): void {
            $connector->askOnce(Connector::LOCKS . 'release', $arguments, $until);
        }, $time);
    }

    private function nextRenewal(): float
    {
        return max($this->tenure->term()->proven + $this->ttl / 3, $this->pauseUntil);
    }

    /** Sends one request to extend the lease, and returns the term that its answer proves. */
    private function sendExtend(float $ttl, float $patience): Term
    {
        $sent = Clock::now();
        $arguments = $this->arguments() + ['ttl' => Duration::toWire($ttl)];
        $until = $sent + min($patience, $this->connector->timeout);
        $this->connector->askOnce(Connector::LOCKS . 'extend', $arguments, $until);
        return new Term($sent, $ttl);
    }

    private function noteFailure(ForrstException $error): void
    {
        $loss = Loss::fromError($error);
        if ($loss !== null) {
            $this->tenure->lose($loss, Clock::now());
            $this->isOurs = false;
        }
        $this->tenure->noteError($error->getMessage());
    }

    private function watch(): void
    {
        if ($this->watcher === null || !$this->tenure->isHeld(Clock::now())) {
            return;
        }
        $loss = $this->watcher->poll();
        if ($loss !== null) {
            $this->tenure->lose($loss, Clock::now());
            $this->isOurs = false;
        }
    }

    private function throwIfLost(?ForrstException $previous = null): void
    {
        $loss = $this->loss();
        if ($loss !== null) {
            $this->watcher?->stop();
            throw new Lost($loss, $previous);
        }
    }

    /** @return array{key: string, owner: string, fence: string} */
    private function arguments(): array
    {
        return ['key' => $this->fullKey, 'owner' => $this->owner, 'fence' => $this->fence];
    }
}

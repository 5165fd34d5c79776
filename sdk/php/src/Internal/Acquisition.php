<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Contended;
use Forrst\Exception\DeadlineExceeded;
use Forrst\Exception\ForrstException;
use Forrst\Exception\Interrupted;
use Forrst\Exception\NotUnderstood;
use Forrst\Exception\RateLimited;
use Forrst\Exception\Rejected;
use Forrst\Exception\TimedOut;
use Forrst\Exception\Unreachable;
use Forrst\Held;
use Forrst\Retry;

/**
 * An acquisition under way. It may take several requests, some of whose answers get lost; the server recognises them by owner and
 * attempt, so that together they result in one lease. An acquisition that is given up is withdrawn.
 *
 * @internal
 */
final class Acquisition
{
    /** The ttl of an attempt that is repeated only to be released: it expires soon even if that fails. */
    private const BRIEF = 2.0;

    private readonly Tries $tries;
    private readonly Wait $wait;

    /** Just before the first request that may have been granted without an answer. */
    private ?float $since = null;

    /** Whether the lock may be held or waited for without a caller that knows. */
    private bool $mayBeGranted = false;

    /**
     * @param array<string, mixed> $arguments those of `acquire`, with `owner` and `attempt`, without `ttl` and `block`
     * @param string $fullKey that of the first key
     */
    public function __construct(
        private readonly Connector $connector,
        private readonly array $arguments,
        private readonly string $fullKey,
        private readonly float $ttl,
        ?float $wait,
        private readonly ?float $deadline,
        Retry $retry,
    ) {
        $this->tries = new Tries($retry, deadline: $deadline, wait: $wait ?? 0.0);
        $this->wait = new Wait($wait);
    }

    public function run(): Grant
    {
        $this->connector->background->runDue();
        try {
            while (true) {
                try {
                    return $this->ask();
                } catch (ForrstException $error) {
                    if ($this->wait->goesOnAfter($error, $this->connector)) {
                        continue;
                    }
                    $this->tries->after($error);
                    if ($error instanceof Contended || $error instanceof TimedOut) {
                        $this->wait->restart();
                    }
                }
            }
        } finally {
            // Also if a signal handler has thrown.
            if ($this->mayBeGranted) {
                $this->connector->background->add($this->withdraw(...), $this->ttl);
            }
        }
    }

    private function ask(): Grant
    {
        $block = $this->wait->next();
        $arguments = $this->arguments + ['ttl' => Duration::toWire($this->ttl)];
        if ($block !== null) {
            $arguments['block'] = Duration::toWire($block);
        }
        $before = [$this->since, $this->mayBeGranted];
        $sent = Clock::now();
        $until = $this->deadline ?? $sent + $this->connector->timeout + ($block ?? 0.0);
        $this->mayBeGranted = true;
        try {
            $answer = $this->connector->askOnce(Connector::LOCKS . 'acquire', $arguments, $until, $this->deadline !== null);
            $held = Held::fromData($answer);
        } catch (ForrstException $error) {
            [$this->since, $this->mayBeGranted] = $before;
            $this->noteFailure($sent, $error);
            throw $error;
        }
        $this->mayBeGranted = false;
        return new Grant($held, $sent, $this->since ?? $sent);
    }

    private function noteFailure(float $sent, ForrstException $error): void
    {
        if ($error instanceof Contended || $error instanceof TimedOut) {
            // If an earlier try had been granted, this one would have got its lease.
            [$this->since, $this->mayBeGranted] = [null, false];
            return;
        }
        if ($error instanceof Unreachable || $error instanceof RateLimited) {
            // It did not reach the store, which says nothing about the earlier tries.
            return;
        }
        // The server rolls back a grant that it answers with an error, but perhaps not before the next try.
        $this->since ??= $sent;
        if (
            $error instanceof Interrupted || $error instanceof NotUnderstood
            || ($error instanceof DeadlineExceeded && $error->failure === null && $error->mayHaveRun())
        ) {
            $this->mayBeGranted = true;
        }
    }

    private function withdraw(float $until): void
    {
        $arguments = ['key' => $this->fullKey] + array_intersect_key($this->arguments, ['owner' => 0, 'attempt' => 0]);
        try {
            $this->connector->askOnce(Connector::LOCKS . 'withdraw', $arguments, $until);
        } catch (Rejected) {
            $this->repeatAndRelease($until);
        }
    }

    /**
     * For a server that cannot withdraw: repeats the attempt with hardly any time to wait. It takes over the position of the first
     * request, and leaves it; or it gets the lease of the first request, and releases it.
     */
    private function repeatAndRelease(float $until): void
    {
        $brief = ['ttl' => Duration::toWire(min($this->ttl, self::BRIEF)), 'block' => Duration::toWire(0.001)];
        try {
            $answer = $this->connector->askOnce(Connector::LOCKS . 'acquire', $this->arguments + $brief, $until);
        } catch (Contended | TimedOut) {
            return;
        }
        $held = Held::fromData($answer);
        $lease = ['key' => $held->fullKey, 'owner' => $held->owner, 'fence' => $held->fence];
        $this->connector->askOnce(Connector::LOCKS . 'release', $lease, $until);
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Contended;
use Forrst\Exception\ForrstException;
use Forrst\Exception\FunctionFailed;
use Forrst\Exception\Interrupted;
use Forrst\Exception\RateLimited;
use Forrst\Exception\TimedOut;
use Forrst\Exception\Unavailable;
use Forrst\Exception\Unreachable;
use Forrst\Retry;

/**
 * The tries of one request: whether and when it is sent again.
 *
 * @internal
 */
final class Tries
{
    private readonly float $started;
    private int $failed = 0;
    private bool $hasLostAnswer = false;

    /**
     * @param bool $mayRunTwice if not, it is only sent again if it was certainly not carried out
     * @param float|null $deadline when all tries have to end
     * @param float $wait for how many seconds there are further tries, however many that are: as long as the request waits for a lock
     */
    public function __construct(
        private readonly Retry $retry,
        private readonly bool $mayRunTwice = true,
        public readonly ?float $deadline = null,
        private readonly float $wait = 0.0,
    ) {
        $this->started = Clock::now();
    }

    /** Whether an earlier try may have been carried out without an answer. */
    public function hasLostAnswer(): bool
    {
        return $this->hasLostAnswer;
    }

    /** Sleeps until the next try, or throws the error if there is none. */
    public function after(ForrstException $error): void
    {
        $pause = $this->pauseAfter($error) ?? throw $error;
        $until = Clock::now() + $pause;
        while (($left = $until - Clock::now()) > 0) {
            usleep((int) ceil(min($left, 1.0) * 1e6));
        }
    }

    /** How long to pause before the next try; null if there is none. */
    public function pauseAfter(ForrstException $error): ?float
    {
        $this->failed++;
        if (!$this->mayRepeat($error)) {
            return null;
        }
        $this->hasLostAnswer = $this->hasLostAnswer || $error->mayHaveRun();
        $pause = max($this->retry->backoff($this->failed), $error->retryAfter() ?? 0.0);
        $next = Clock::now() + $pause;
        if ($this->deadline !== null && $next >= $this->deadline) {
            return null;
        }
        $isAllowed = $this->failed < $this->retry->attempts && $next - $this->started <= $this->retry->within;
        $stillWaits = $this->retry->attempts > 1 && $next - $this->started < $this->wait;
        return $isAllowed || $stillWaits ? $pause : null;
    }

    private function mayRepeat(ForrstException $error): bool
    {
        $isWorthIt = match (true) {
            $error instanceof Contended, $error instanceof TimedOut => $this->retry->onContention,
            $error instanceof Unreachable, $error instanceof Interrupted,
            $error instanceof Unavailable, $error instanceof RateLimited => true,
            $error instanceof FunctionFailed => $error->failure?->isRetryable() === true,
            default => false,
        };
        return $isWorthIt && ($this->mayRunTwice || !$error->mayHaveRun());
    }
}

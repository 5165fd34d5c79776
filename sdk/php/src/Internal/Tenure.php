<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Loss;

/**
 * The state of a lease, from its grant to its end. It ends once: a lost lease stays lost.
 *
 * @internal
 */
final class Tenure
{
    private ?Loss $loss = null;
    private bool $hasEnded = false;
    private ?string $lastError = null;

    public function __construct(private Term $term)
    {
    }

    public function term(): Term
    {
        return $this->term;
    }

    /** Why it is lost; null as long as it is held, and if it was released or kept. */
    public function loss(float $now): ?Loss
    {
        if (!$this->hasEnded && $this->loss === null && $now >= $this->term->until) {
            $this->loss = Loss::expired($this->lastError);
        }
        return $this->loss;
    }

    public function isHeld(float $now): bool
    {
        return $this->loss($now) === null && !$this->hasEnded;
    }

    /** Replaces the term of a lease that its caller does not have yet, even if it has ended. */
    public function setFirstTerm(Term $term): void
    {
        $this->term = $term;
        $this->loss = null;
    }

    /** Moves the end, unless it has passed: a late answer changes nothing. */
    public function extend(Term $term, float $now): void
    {
        if ($this->isHeld($now)) {
            $this->term = $term;
            $this->lastError = null;
        }
    }

    /** Keeps the error of a failed renewal, to be reported if the lease expires. */
    public function noteError(string $error): void
    {
        $this->lastError = $error;
    }

    /** Marks it as lost before its time is over. */
    public function lose(Loss $loss, float $now): void
    {
        if ($this->isHeld($now)) {
            $this->loss = $loss;
        }
    }

    /** Marks it as lost, because its release has found that it had ended before. */
    public function loseAtRelease(Loss $loss): void
    {
        $this->loss ??= $loss;
    }

    /** Marks it as released or kept, unless it is lost already. */
    public function end(float $now): void
    {
        $this->hasEnded = $this->isHeld($now) || $this->hasEnded;
    }

    public function hasEnded(): bool
    {
        return $this->hasEnded;
    }
}

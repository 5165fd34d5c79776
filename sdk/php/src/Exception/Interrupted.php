<?php

declare(strict_types=1);

namespace Forrst\Exception;

use Throwable;

/**
 * The answer is lost: the connection broke, or no answer came in time. What was sent may have been done.
 */
final class Interrupted extends ForrstException
{
    public function __construct(string $message, private readonly ?float $retryAfter = null, ?Throwable $previous = null)
    {
        parent::__construct($message, previous: $previous);
    }

    public function mayHaveRun(): bool
    {
        return true;
    }

    /** What a proxy asked for, with the header `Retry-After`. */
    public function retryAfter(): ?float
    {
        return $this->retryAfter;
    }
}

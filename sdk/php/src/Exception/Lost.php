<?php

declare(strict_types=1);

namespace Forrst\Exception;

use Forrst\Loss;
use Throwable;

/**
 * The lease ended before it was released; another client may hold the lock.
 */
final class Lost extends ForrstException
{
    public function __construct(public readonly Loss $loss, ?Throwable $previous = null)
    {
        parent::__construct("the lease is lost: {$loss->message}", previous: $previous);
    }

    public function mayHaveRun(): bool
    {
        return true;
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Exception;

use Forrst\Failure;
use RuntimeException;
use Throwable;

/**
 * Why a call or a lock operation has no result. There is one subclass for each way of handling it.
 */
abstract class ForrstException extends RuntimeException
{
    public function __construct(
        string $message,
        /** What the server answered, if it did. */
        public readonly ?Failure $failure = null,
        ?Throwable $previous = null,
    ) {
        parent::__construct($message, 0, $previous);
    }

    /** Whether the function that was called may have begun. If not, any call may safely be repeated. */
    abstract public function mayHaveRun(): bool;

    /** The code of the first error that the server reported, such as `LOCK_TIMEOUT`. */
    public function errorCode(): ?string
    {
        return $this->failure?->code;
    }

    /** Which part of the request is wrong, such as `/call/arguments/amount`. */
    public function pointer(): ?string
    {
        return $this->failure?->pointer;
    }

    /**
     * Further members of the error, such as the key of a lock.
     *
     * @return array<string, mixed>
     */
    public function details(): array
    {
        return $this->failure->details ?? [];
    }

    /** How many seconds to wait before a retry, if the server named a time. */
    public function retryAfter(): ?float
    {
        return $this->failure?->retryAfter();
    }
}

<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\Cancelled;
use Forrst\Exception\Contended;
use Forrst\Exception\DeadlineExceeded;
use Forrst\Exception\Forbidden;
use Forrst\Exception\ForrstException;
use Forrst\Exception\FunctionFailed;
use Forrst\Exception\Mismatch;
use Forrst\Exception\NotHeld;
use Forrst\Exception\RateLimited;
use Forrst\Exception\Rejected;
use Forrst\Exception\TimedOut;
use Forrst\Exception\Unauthorized;
use Forrst\Exception\Unavailable;
use Forrst\Internal\Duration;

/**
 * The errors of an answer; there is at least one.
 */
final class Failure
{
    /** The codes that may succeed when they are tried again, of the server and of functions. */
    private const RETRYABLE = [
        'LOCK_ACQUISITION_FAILED', 'LOCK_TIMEOUT', 'DEADLINE_EXCEEDED', 'RATE_LIMITED', 'INTERNAL_ERROR', 'UNAVAILABLE',
        'FUNCTION_DISABLED', 'FUNCTION_MAINTENANCE', 'SERVER_MAINTENANCE', 'DEPENDENCY_ERROR', 'IDEMPOTENCY_PROCESSING',
        'BATCH_TIMEOUT',
    ];

    /** What went wrong, for programs. */
    public readonly string $code;

    /** What went wrong, for people. */
    public readonly string $message;

    /** Which part of the request is wrong, such as `/call/arguments/amount`. */
    public readonly ?string $pointer;

    /** @var array<string, mixed> Further members of the first error, such as the key of a lock. */
    public readonly array $details;

    public function __construct(
        /** The whole answer. */
        public readonly Response $response,
    ) {
        $first = $response->errors[0];
        $this->code = $first['code'];
        $this->message = $first['message'];
        $this->pointer = $first['pointer'];
        $this->details = $first['details'];
    }

    /** Whether all errors are such that the same request may succeed later. */
    public function isRetryable(): bool
    {
        foreach ($this->response->errors as $error) {
            if (!in_array($error['code'], self::RETRYABLE, true)) {
                return false;
            }
        }
        return true;
    }

    /** How many seconds to wait before a retry: the longest time that any of the errors names, else that of `Retry-After`. */
    public function retryAfter(): ?float
    {
        $named = null;
        foreach ($this->response->errors as $error) {
            $named = max($named, Duration::seconds($error['details']['retry_after'] ?? null));
        }
        return $named ?? $this->response->retryAfter;
    }

    /** Whether the lock that the call asked for was acquired; null for a call without a lock. */
    public function hasAcquiredLock(): ?bool
    {
        $acquired = $this->response->lockData()['acquired'] ?? null;
        return is_bool($acquired) ? $acquired : null;
    }

    /** The exception for it, by the first of its errors: servers report several only when the request itself is invalid. */
    public function toException(): ForrstException
    {
        return match ($this->code) {
            'LOCK_ACQUISITION_FAILED' => new Contended("the lock is held: $this", $this),
            'LOCK_TIMEOUT' => new TimedOut("the lock was not free in time: $this", $this),
            'LOCK_OWNERSHIP_MISMATCH' => new Mismatch("the lock is held by another owner or lease: $this", $this),
            'LOCK_NOT_FOUND' => new NotHeld("the lock is not held: $this", $this),
            'LOCK_ALREADY_RELEASED' => new AlreadyReleased("the lock was already released: $this", $this),
            'DEADLINE_EXCEEDED' => new DeadlineExceeded("the deadline has passed: $this", $this),
            'CANCELLED' => new Cancelled("the call was cancelled: $this", $this),
            'UNAVAILABLE', 'SERVER_MAINTENANCE', 'FUNCTION_MAINTENANCE', 'FUNCTION_DISABLED'
                => new Unavailable("the server is unavailable: $this", $this),
            'RATE_LIMITED' => new RateLimited("too many requests: $this", $this),
            'UNAUTHORIZED' => new Unauthorized("the server does not accept the API key: $this", $this),
            'FORBIDDEN' => new Forbidden("not allowed: $this", $this),
            'PARSE_ERROR', 'INVALID_REQUEST', 'INVALID_PROTOCOL_VERSION', 'INVALID_ARGUMENTS', 'EXTENSION_NOT_SUPPORTED',
            'EXTENSION_NOT_APPLICABLE', 'FUNCTION_NOT_FOUND', 'VERSION_NOT_FOUND', 'SCHEMA_VALIDATION_FAILED'
                => new Rejected("the request was rejected: $this", $this),
            default => new FunctionFailed("the function failed: $this", $this),
        };
    }

    public function __toString(): string
    {
        return implode('; ', array_map(
            static fn (array $error): string => "{$error['message']} ({$error['code']})"
                . ($error['pointer'] === null ? '' : " at {$error['pointer']}"),
            $this->response->errors,
        ));
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Internal;

/**
 * What came back on a connection.
 *
 * @internal
 */
final class Answer
{
    public function __construct(
        public readonly int $status,
        public readonly string $body,
        /** The header `Retry-After`, in seconds. */
        public readonly ?float $retryAfter = null,
    ) {
    }
}

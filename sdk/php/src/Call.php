<?php

declare(strict_types=1);

namespace Forrst;

/**
 * A call of a function, with everything that it can have: {@see Client::response()} sends it.
 */
final class Call
{
    /**
     * @param string $function the name of the function
     * @param array<string, mixed> $arguments its arguments
     * @param Lock|null $lock the lock that it runs under
     * @param int|float|null $deadline how many seconds the call may take, retries included. The server ends it then
     * @param bool $idempotent whether the function may safely run twice: then it is also retried after a lost answer
     * @param string|null $version the version of the function; by default the highest stable one
     * @param array<string, mixed>|null $context passed on to the function
     * @param string|null $cancellation a token that {@see Client::cancel()} ends the call with, in any process
     * @param list<array{urn: string, options?: array<string, mixed>, required?: bool}> $extensions further ones
     * @param Retry|null $retry how it is retried, where that is safe; by default as the client is
     */
    public function __construct(
        public readonly string $function,
        public readonly array $arguments = [],
        public readonly ?Lock $lock = null,
        public readonly int|float|null $deadline = null,
        public readonly bool $idempotent = false,
        public readonly ?string $version = null,
        public readonly ?array $context = null,
        public readonly ?string $cancellation = null,
        public readonly array $extensions = [],
        public readonly ?Retry $retry = null,
    ) {
    }
}

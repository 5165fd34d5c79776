<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\AlreadyReleased;
use Forrst\Exception\ForrstException;
use Forrst\Exception\Mismatch;
use Forrst\Exception\NotHeld;

/**
 * Why a lease is lost.
 */
final class Loss
{
    private function __construct(
        public readonly string $message,
        /** Whether the server answered that it has ended, by force for example; otherwise its time was over here. */
        public readonly bool $isProven,
    ) {
    }

    /** @internal */
    public static function expired(?string $lastError): self
    {
        $why = $lastError === null ? '' : ", and could not be extended: $lastError";
        return new self("its time is over$why", false);
    }

    /** @internal */
    public static function proven(string $message): self
    {
        return new self($message, true);
    }

    /**
     * The loss that an answer of the server proves; null for any other error.
     *
     * @internal
     */
    public static function fromError(ForrstException $error): ?self
    {
        return $error instanceof NotHeld || $error instanceof Mismatch || $error instanceof AlreadyReleased
            ? new self((string) $error->failure, true)
            : null;
    }
}

<?php

declare(strict_types=1);

namespace Forrst;

use DateTimeImmutable;
use Forrst\Exception\NotUnderstood;

/**
 * A caller that waits for a lock.
 */
final class Waiter
{
    private function __construct(
        /** Its position in the queue; 1 is next. */
        public readonly int $position,
        /** The owner token, or a hash of it. */
        public readonly string $owner,
        /** The caller that asked, where the server knows its callers. */
        public readonly ?string $caller,
        /** The note that its owner has given. */
        public readonly ?string $note,
        /** Since when it waits, by the server's clock. */
        public readonly DateTimeImmutable $since,
        /** When it gives up, by the server's clock. */
        public readonly DateTimeImmutable $until,
    ) {
    }

    /** @internal */
    public static function fromData(mixed $data): self
    {
        if (!is_int($data['position'] ?? null) || !is_string($data['owner'] ?? null)) {
            throw new NotUnderstood('the answer has a waiter without `position` or `owner`');
        }
        [$caller, $note] = [$data['caller'] ?? null, $data['note'] ?? null];
        return new self(
            $data['position'],
            $data['owner'],
            is_string($caller) ? $caller : null,
            is_string($note) ? $note : null,
            Held::time($data['since'] ?? null),
            Held::time($data['until'] ?? null),
        );
    }
}

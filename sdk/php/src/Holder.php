<?php

declare(strict_types=1);

namespace Forrst;

use DateTimeImmutable;
use Forrst\Exception\NotUnderstood;

/**
 * One lease on a lock.
 */
final class Holder
{
    /** @param list<string> $fullKeys */
    private function __construct(
        /** The owner token; or a hash of it, which only tells owners apart, for callers that may not see it. */
        public readonly string $owner,
        /** Its fencing token; null where the server has only the bare extension. */
        public readonly ?string $fence,
        /** The caller that took it, where the server knows its callers. */
        public readonly ?string $caller,
        /** The note that its holder has given. */
        public readonly ?string $note,
        /** When it was taken, by the server's clock. */
        public readonly DateTimeImmutable $acquiredAt,
        /** When it ends, by the server's clock. */
        public readonly DateTimeImmutable $expiresAt,
        /** How many seconds are left. */
        public readonly float $ttlRemaining,
        /** The keys of a lock on several, as far as the caller may see them; empty for a lock on one. */
        public readonly array $fullKeys,
    ) {
    }

    /** @internal */
    public static function fromData(mixed $data): self
    {
        if (!is_string($data['owner'] ?? null)) {
            throw new NotUnderstood('the answer has a holder without `owner`');
        }
        $text = static fn (string $name): ?string => is_string($data[$name] ?? null) ? $data[$name] : null;
        $exact = $data['ttl_remaining_ms'] ?? null;
        $keys = $data['full_keys'] ?? null;
        return new self(
            $data['owner'],
            $text('fence'),
            $text('caller'),
            $text('note'),
            Held::time($data['acquired_at'] ?? null),
            Held::time($data['expires_at'] ?? null),
            is_int($exact) ? $exact / 1_000 : (float) ($data['ttl_remaining'] ?? 0),
            is_array($keys) ? array_values(array_filter($keys, 'is_string')) : [],
        );
    }
}

<?php

declare(strict_types=1);

namespace Forrst;

use JsonSerializable;

/**
 * One key of a lock on several, which may be held in another way than the others.
 */
final class Key implements JsonSerializable
{
    private function __construct(
        public readonly string $key,
        private readonly ?Mode $mode = null,
        private readonly ?int $limit = null,
    ) {
    }

    /** Held by this lease alone, whatever applies to the other keys. */
    public static function exclusive(string $key): self
    {
        return new self($key, Mode::Exclusive);
    }

    /** Held together with other shared leases. */
    public static function shared(string $key): self
    {
        return new self($key, Mode::Shared);
    }

    /** Held by at most `$limit` leases at once. */
    public static function limit(string $key, int $limit): self
    {
        return new self($key, limit: $limit);
    }

    /** @return array{key: string, mode?: Mode, limit?: int} */
    public function jsonSerialize(): array
    {
        return array_filter(get_object_vars($this), static fn (mixed $value): bool => $value !== null);
    }
}

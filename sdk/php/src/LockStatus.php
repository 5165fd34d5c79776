<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\NotUnderstood;

/**
 * The state of a lock when the server answered.
 */
final class LockStatus
{
    /** @param list<Holder> $holders */
    private function __construct(
        public readonly string $fullKey,
        public readonly bool $isHeld,
        /** How it is held; null if it is free, or a counting semaphore. */
        public readonly ?Mode $mode,
        /** How many leases may hold it, if it is a counting semaphore. */
        public readonly ?int $limit,
        /** How many more may hold it now. */
        public readonly ?int $available,
        /** The leases, the smallest fence first; 100 at most. */
        public readonly array $holders,
        /** How many leases there are. */
        public readonly int $holderCount,
        /** How many wait for it. */
        public readonly int $waiters,
        /** The state of its leases, for {@see Locks::watch()}; null otherwise. */
        public readonly ?string $revision,
    ) {
    }

    /** The holder with the smallest fence: the only one, unless the lock is shared. */
    public function holder(): ?Holder
    {
        return $this->holders[0] ?? null;
    }

    /** @internal */
    public static function fromResult(mixed $data): self
    {
        if (!is_string($data['key'] ?? null) || !is_bool($data['locked'] ?? null)) {
            throw new NotUnderstood('the answer is not the status of a lock');
        }
        $number = static fn (string $name): ?int => is_int($data[$name] ?? null) ? $data[$name] : null;
        $holders = is_array($data['holders'] ?? null) ? array_values($data['holders']) : [];
        if ($data['locked'] && $holders === [] && isset($data['owner'])) {
            // A server with only the bare extension names one holder.
            $holders = [$data];
        }
        $limit = $number('limit');
        $mode = is_string($data['mode'] ?? null) ? Mode::tryFrom($data['mode']) : null;
        return new self(
            $data['key'],
            $data['locked'],
            $mode ?? ($data['locked'] && $limit === null ? Mode::Exclusive : null),
            $limit,
            $number('available'),
            array_map(Holder::fromData(...), $holders),
            $number('holder_count') ?? count($holders),
            $number('waiters') ?? 0,
            is_string($data['revision'] ?? null) ? $data['revision'] : null,
        );
    }
}

<?php

declare(strict_types=1);

namespace Forrst;

use DateTimeImmutable;
use Exception;
use Forrst\Exception\NotUnderstood;

/**
 * A lock that was acquired, as the server's answer describes it. Nothing here releases it.
 */
final class Held
{
    /**
     * @param non-empty-list<string> $keys
     * @param non-empty-list<string> $fullKeys
     */
    private function __construct(
        /** The keys that were requested, in that order and normalised by the server. */
        public readonly array $keys,
        /** Their full keys. The lock can be released by any of them. */
        public readonly array $fullKeys,
        /** The first of them. */
        public readonly string $fullKey,
        /** The token that releases and extends it. */
        public readonly string $owner,
        /** The fencing token, for the resource that the lock protects: 15 digits, which sort as text. */
        public readonly string $fence,
        /** When it ends by the server's clock, which need not agree with this machine's. */
        public readonly DateTimeImmutable $expiresAt,
        /** How many seconds the server had the request. A server with only the bare extension does not say. */
        public readonly ?float $elapsed,
        /** How many seconds were left of the lease then. A server with only the bare extension does not say. */
        public readonly ?float $ttlRemaining,
    ) {
    }

    /**
     * @internal
     */
    public static function fromData(mixed $data): self
    {
        $keys = self::oneOrAll($data['key'] ?? null, $data['keys'] ?? null);
        $fullKeys = self::oneOrAll($data['full_key'] ?? null, $data['full_keys'] ?? null);
        [$owner, $fence] = [$data['owner'] ?? null, $data['fence'] ?? null];
        if ($keys === [] || $fullKeys === [] || !is_string($owner) || !is_string($fence)) {
            throw new NotUnderstood('the answer does not describe a lock: it needs `key`, `full_key`, `owner` and `fence`');
        }
        $seconds = static fn (mixed $milliseconds): ?float => is_int($milliseconds) ? $milliseconds / 1_000 : null;
        return new self(
            $keys,
            $fullKeys,
            $fullKeys[0],
            $owner,
            $fence,
            self::time($data['expires_at'] ?? null),
            $seconds($data['elapsed_ms'] ?? null),
            $seconds($data['ttl_remaining_ms'] ?? null),
        );
    }

    /**
     * @internal
     */
    public static function time(mixed $text): DateTimeImmutable
    {
        try {
            return is_string($text) ? new DateTimeImmutable($text) : throw new Exception('it is not a string');
        } catch (Exception $why) {
            throw new NotUnderstood('the answer has a time that is not a timestamp', previous: $why);
        }
    }

    /** @return list<string> */
    private static function oneOrAll(mixed $one, mixed $all): array
    {
        $keys = is_array($all) ? array_values($all) : [$one];
        return array_filter($keys, 'is_string') === $keys ? $keys : [];
    }
}

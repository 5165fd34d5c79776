<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\InvalidRequest;

/**
 * Durations: seconds here, `{value, unit}` on the wire.
 *
 * @internal
 */
final class Duration
{
    private const MILLISECONDS = [
        'day' => 86_400_000, 'hour' => 3_600_000, 'minute' => 60_000, 'second' => 1_000, 'millisecond' => 1,
    ];

    /**
     * In the longest unit that divides it. Fractions of a millisecond are dropped, but at least one millisecond is left, because
     * servers refuse a duration of zero.
     *
     * @return array{value: int, unit: string}
     */
    public static function toWire(float $seconds): array
    {
        // Not `floor`: 0.29 seconds are 290 milliseconds, although the float is a little less.
        $milliseconds = max(1, (int) ($seconds * 1_000 + 0.001));
        foreach (self::MILLISECONDS as $unit => $length) {
            if ($milliseconds % $length === 0) {
                break;
            }
        }
        return ['value' => intdiv($milliseconds, $length), 'unit' => $unit];
    }

    /** The seconds of a duration of the protocol; null for anything else. */
    public static function seconds(mixed $duration): ?float
    {
        $value = $duration['value'] ?? null;
        $length = self::MILLISECONDS[$duration['unit'] ?? ''] ?? null;
        return is_int($value) && $length !== null ? $value * $length / 1_000 : null;
    }

    /** A time that a caller has given, in seconds: for a `ttl`, more than none. */
    public static function given(int|float $seconds, string $name): float
    {
        if (!($seconds >= 0 && $seconds <= 1e9) || ($name === 'ttl' && $seconds == 0)) {
            throw new InvalidRequest("`$name` has to be a positive number of seconds, not $seconds");
        }
        return (float) $seconds;
    }
}

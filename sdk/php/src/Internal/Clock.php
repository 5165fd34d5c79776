<?php

declare(strict_types=1);

namespace Forrst\Internal;

/**
 * The clock that leases are counted by: it never goes back, whatever happens to the wall clock.
 *
 * The monotonic clock of PHP stops while the machine sleeps, so on Linux the time of sleep is added. It is the difference to the
 * time since boot, which `/proc/uptime` has in steps of 10 milliseconds.
 *
 * @internal
 */
final class Clock
{
    /** A smaller difference is not a sleep. */
    private const RESOLUTION = 0.1;

    private static ?bool $knowsUptime = null;
    private static ?float $sleptBefore = null;
    private static float $slept = 0.0;

    /** Seconds since some moment in the past. */
    public static function now(): float
    {
        // In this order: a pause between the two must not look like sleep.
        $uptime = self::uptime();
        $awake = hrtime(true) / 1e9;
        if ($uptime !== null) {
            self::$sleptBefore ??= $uptime - $awake;
            $slept = $uptime - $awake - self::$sleptBefore;
            if ($slept > self::$slept + self::RESOLUTION) {
                self::$slept = $slept;
            }
        }
        return $awake + self::$slept;
    }

    private static function uptime(): ?float
    {
        self::$knowsUptime ??= PHP_OS_FAMILY === 'Linux' && @is_readable('/proc/uptime');
        $text = self::$knowsUptime ? @file_get_contents('/proc/uptime') : false;
        return $text === false ? null : (float) $text;
    }
}

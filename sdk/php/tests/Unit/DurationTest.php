<?php

declare(strict_types=1);

namespace Forrst\Tests\Unit;

use Forrst\Exception\InvalidRequest;
use Forrst\Internal\Duration;
use PHPUnit\Framework\TestCase;

final class DurationTest extends TestCase
{
    public function testItIsSentInTheLongestUnitThatFits(): void
    {
        foreach ([[60, 1, 'minute'], [90, 90, 'second'], [0.29, 290, 'millisecond'], [172_800, 2, 'day']] as $case) {
            [$seconds, $value, $unit] = $case;
            self::assertSame(['value' => $value, 'unit' => $unit], Duration::toWire($seconds));
        }
    }

    public function testAtLeastAMillisecondIsSent(): void
    {
        self::assertSame(['value' => 1, 'unit' => 'millisecond'], Duration::toWire(0));
        self::assertSame(['value' => 1, 'unit' => 'millisecond'], Duration::toWire(0.0019));
    }

    public function testADurationOfTheServerIsRead(): void
    {
        self::assertSame(0.25, Duration::seconds(['value' => 250, 'unit' => 'millisecond']));
        foreach ([null, 'x', [], ['value' => '1', 'unit' => 'second'], ['value' => 1, 'unit' => 'week']] as $other) {
            self::assertNull(Duration::seconds($other));
        }
    }

    public function testAnImpossibleTimeIsRefusedByName(): void
    {
        foreach ([['ttl', 0], ['wait', -1], ['wait', NAN], ['wait', INF]] as [$name, $seconds]) {
            try {
                Duration::given($seconds, $name);
                self::fail("$seconds was accepted");
            } catch (InvalidRequest $error) {
                self::assertStringContainsString("`$name`", $error->getMessage());
            }
        }
    }
}

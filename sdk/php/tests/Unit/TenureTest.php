<?php

declare(strict_types=1);

namespace Forrst\Tests\Unit;

use Forrst\Internal\Tenure;
use Forrst\Internal\Term;
use Forrst\Loss;
use PHPUnit\Framework\TestCase;

final class TenureTest extends TestCase
{
    private const SENT = 1_000.0;
    private const TTL = 3.0;
    /** 1 % of the ttl and 2 ms before its end. */
    private const END = self::SENT + self::TTL - 0.032;

    private static function tenure(): Tenure
    {
        return new Tenure(new Term(self::SENT, self::TTL));
    }

    public function testALeaseIsLostAMarginBeforeItsTtlIsOver(): void
    {
        self::assertTrue(self::tenure()->isHeld(self::END - 0.001));
        self::assertFalse(self::tenure()->isHeld(self::END + 0.001));
        self::assertFalse(self::tenure()->loss(self::END + 0.001)?->isProven);
    }

    public function testARenewalInTimeMovesTheEnd(): void
    {
        $tenure = self::tenure();
        $tenure->extend(new Term(self::SENT + 1, self::TTL), self::SENT + 1.5);
        self::assertTrue($tenure->isHeld(self::END + 0.9));
        self::assertFalse($tenure->isHeld(self::END + 1.1));
    }

    public function testALateRenewalDoesNotReviveALease(): void
    {
        $tenure = self::tenure();
        $tenure->extend(new Term(self::SENT + 2.9, self::TTL), self::END + 0.1);
        self::assertFalse($tenure->isHeld(self::END + 0.2));
        self::assertNotNull($tenure->loss(self::SENT), 'not even for a clock that goes back');
    }

    public function testALeaseThatTheServerSaysHasEndedIsLostForGood(): void
    {
        $tenure = self::tenure();
        $tenure->lose(Loss::proven('not yours'), self::SENT + 1);
        $tenure->extend(new Term(self::SENT + 1, self::TTL), self::SENT + 1);
        $tenure->end(self::SENT + 1);
        self::assertSame('not yours', $tenure->loss(self::SENT + 1)?->message);
    }

    public function testALeaseThatWasReleasedIsNeverLost(): void
    {
        $tenure = self::tenure();
        $tenure->end(self::SENT + 1);
        self::assertNull($tenure->loss(self::END + 10));
        self::assertFalse($tenure->isHeld(self::SENT + 1));
    }

    public function testTheLastErrorOfARenewalIsPartOfTheLoss(): void
    {
        $tenure = self::tenure();
        $tenure->noteError('no route to host');
        self::assertStringContainsString('no route to host', (string) $tenure->loss(self::END + 1)?->message);
    }
}

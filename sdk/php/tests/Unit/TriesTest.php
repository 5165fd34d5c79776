<?php

declare(strict_types=1);

namespace Forrst\Tests\Unit;

use Forrst\Exception\ForrstException;
use Forrst\Exception\Interrupted;
use Forrst\Exception\NotUnderstood;
use Forrst\Exception\Unreachable;
use Forrst\Internal\Answer;
use Forrst\Internal\Clock;
use Forrst\Internal\Tries;
use Forrst\Response;
use Forrst\Retry;
use PHPUnit\Framework\TestCase;

final class TriesTest extends TestCase
{
    private static function refused(string $code, ?bool $acquired = null, ?float $header = null): ForrstException
    {
        $body = ['protocol' => ['name' => 'forrst'], 'id' => '1', 'result' => null, 'errors' => [['code' => $code]]];
        if ($acquired !== null) {
            $body['extensions'] = [['urn' => 'urn:forrst:ext:atomicLock', 'data' => ['acquired' => $acquired]]];
        }
        $failure = Response::read(new Answer(503, (string) json_encode($body), $header), '1')->failure();
        self::assertNotNull($failure);
        return $failure->toException();
    }

    private static function isRetried(ForrstException $error, bool $mayRunTwice): bool
    {
        return (new Tries(new Retry(), $mayRunTwice))->pauseAfter($error) !== null;
    }

    public function testWhatCertainlyDidNotRunIsRetried(): void
    {
        $errors = [
            new Unreachable('no'), self::refused('RATE_LIMITED'), self::refused('FUNCTION_DISABLED'),
            self::refused('FUNCTION_MAINTENANCE'), self::refused('SERVER_MAINTENANCE'), self::refused('UNAVAILABLE', false),
        ];
        foreach ($errors as $error) {
            self::assertTrue(self::isRetried($error, false), (string) $error->errorCode());
        }
    }

    public function testWhatMayHaveRunIsRetriedOnlyIfItMayRunTwice(): void
    {
        $errors = [
            new Interrupted('no answer'), self::refused('UNAVAILABLE'), self::refused('UNAVAILABLE', true),
            self::refused('INTERNAL_ERROR'), self::refused('RATE_LIMITED', true), self::refused('DEPENDENCY_ERROR'),
        ];
        foreach ($errors as $error) {
            self::assertFalse(self::isRetried($error, false), (string) $error->errorCode());
            self::assertTrue(self::isRetried($error, true), (string) $error->errorCode());
        }
    }

    public function testWhatCannotSucceedIsNotRetried(): void
    {
        $codes = [
            'PARSE_ERROR', 'INVALID_REQUEST', 'INVALID_PROTOCOL_VERSION', 'INVALID_ARGUMENTS', 'EXTENSION_NOT_SUPPORTED',
            'EXTENSION_NOT_APPLICABLE', 'UNAUTHORIZED', 'FORBIDDEN', 'FUNCTION_NOT_FOUND', 'VERSION_NOT_FOUND',
            'LOCK_NOT_FOUND', 'LOCK_OWNERSHIP_MISMATCH', 'LOCK_ALREADY_RELEASED', 'LOCK_ACQUISITION_FAILED', 'LOCK_TIMEOUT',
            'DEADLINE_EXCEEDED', 'CANCELLED', 'CANCELLATION_TOKEN_UNKNOWN', 'CANCELLATION_TOO_LATE', 'A_CODE_OF_ITS_OWN',
        ];
        foreach ($codes as $code) {
            self::assertFalse(self::isRetried(self::refused($code), true), $code);
        }
        self::assertFalse(self::isRetried(new NotUnderstood('html'), true));
    }

    public function testContentionIsRetriedIfTheCallerAsksForIt(): void
    {
        $tries = new Tries(new Retry(onContention: true), false);
        self::assertNotNull($tries->pauseAfter(self::refused('LOCK_TIMEOUT', false)));
    }

    public function testTheTriesAreLimitedByNumberTimeAndDeadline(): void
    {
        $tries = new Tries(new Retry(attempts: 3));
        self::assertNotNull($tries->pauseAfter(new Unreachable('no')));
        self::assertNotNull($tries->pauseAfter(new Unreachable('no')));
        self::assertNull($tries->pauseAfter(new Unreachable('no')));
        self::assertNull((new Tries(new Retry()))->pauseAfter(self::refused('RATE_LIMITED', header: 16.0)));
        $tries = new Tries(new Retry(), deadline: Clock::now() + 5);
        self::assertNull($tries->pauseAfter(self::refused('RATE_LIMITED', header: 6.0)));
    }

    public function testARequestThatWaitsIsRetriedUntilItsWaitIsOver(): void
    {
        $tries = new Tries(new Retry(), wait: 60.0);
        for ($failed = 0; $failed < 20; $failed++) {
            self::assertNotNull($tries->pauseAfter(new Unreachable('no')));
        }
        self::assertNull((new Tries(Retry::never(), wait: 60.0))->pauseAfter(new Unreachable('no')));
    }

    public function testThePauseIsAtLeastWhatTheServerAsksFor(): void
    {
        $pause = (new Tries(new Retry()))->pauseAfter(self::refused('RATE_LIMITED', header: 3.0));
        self::assertSame(3.0, $pause);
    }

    public function testPausesDoubleAndHalfOfEachIsRandom(): void
    {
        $retry = new Retry(firstPause: 0.1, longestPause: 0.7);
        foreach ([1 => 0.1, 2 => 0.2, 3 => 0.4, 4 => 0.7, 9 => 0.7, PHP_INT_MAX => 0.7] as $failed => $full) {
            $pauses = array_map(fn () => $retry->backoff($failed), range(1, 500));
            self::assertGreaterThanOrEqual($full / 2, min($pauses));
            self::assertLessThanOrEqual($full, max($pauses));
            self::assertGreaterThan($full * 0.9, max($pauses));
            self::assertLessThan($full * 0.6, min($pauses));
        }
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Tests\Support;

use Forrst\Exception\ForrstException;
use PHPUnit\Framework\TestCase as Base;

abstract class TestCase extends Base
{
    /** Waits until it returns true. */
    protected static function until(string $what, callable $condition): void
    {
        $until = microtime(true) + Process::PATIENCE;
        while (!$condition()) {
            if (microtime(true) > $until) {
                self::fail("$what: not in time");
            }
            usleep(5_000);
        }
        self::assertTrue(true);
    }

    /**
     * @template T of ForrstException
     * @param class-string<T> $class
     * @return T
     */
    protected static function thrown(string $class, callable $body): ForrstException
    {
        try {
            $body();
        } catch (ForrstException $error) {
            self::assertInstanceOf($class, $error, $error->getMessage());
            return $error;
        }
        self::fail("$class was not thrown");
    }
}

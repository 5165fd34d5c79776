<?php

declare(strict_types=1);

namespace Forrst\Tests\Real;

use Forrst\Tests\Support\Redis;

final class RedisTest extends Locks
{
    private static Redis $redis;

    protected static function store(): string
    {
        self::$redis = new Redis();
        return self::$redis->url;
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Tests\Real;

use Forrst\Tests\Support\Folder;

final class EmbeddedTest extends Locks
{
    private static Folder $folder;

    protected static function store(): string
    {
        self::$folder = new Folder();
        return 'embedded:' . self::$folder->path . '/data';
    }
}

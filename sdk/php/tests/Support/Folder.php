<?php

declare(strict_types=1);

namespace Forrst\Tests\Support;

use RecursiveDirectoryIterator;
use RecursiveIteratorIterator;

/**
 * A temporary folder, which is removed with this object.
 */
final class Folder
{
    public readonly string $path;

    public function __construct()
    {
        $this->path = sys_get_temp_dir() . '/forrst-php-' . bin2hex(random_bytes(6));
        mkdir($this->path, 0700);
    }

    public function __destruct()
    {
        $files = new RecursiveIteratorIterator(
            new RecursiveDirectoryIterator($this->path, RecursiveDirectoryIterator::SKIP_DOTS),
            RecursiveIteratorIterator::CHILD_FIRST,
        );
        foreach ($files as $file) {
            $file->isDir() && !$file->isLink() ? rmdir((string) $file) : unlink((string) $file);
        }
        rmdir($this->path);
    }
}

<?php

declare(strict_types=1);

require dirname(__DIR__) . '/autoload.php';

// The same for the tests.
spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Forrst\\Tests\\')) {
        $file = __DIR__ . '/' . str_replace('\\', '/', substr($class, strlen('Forrst\\Tests\\'))) . '.php';
        if (is_file($file)) {
            require $file;
        }
    }
});

<?php

declare(strict_types=1);

// For programs without Composer: loads the classes of this package, by PSR-4.
spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Forrst\\')) {
        $file = __DIR__ . '/src/' . str_replace('\\', '/', substr($class, strlen('Forrst\\'))) . '.php';
        if (is_file($file)) {
            require $file;
        }
    }
});

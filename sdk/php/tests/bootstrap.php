<?php

declare(strict_types=1);

require __DIR__ . '/autoload.php';
// Debian's packages of Laravel's components.
require_once 'Illuminate/Cache/autoload.php';
require_once 'Illuminate/Container/autoload.php';
require_once 'Illuminate/Config/autoload.php';

<?php

// Another process of a test: runs the code of its second argument, with a client of the server of its first.

declare(strict_types=1);

require __DIR__ . '/autoload.php';

[, $url, $code] = $argv;
$client = new Forrst\Client($url);

function say(string $line): void
{
    echo $line, "\n";
}

eval($code);

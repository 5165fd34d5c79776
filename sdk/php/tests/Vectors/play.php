<?php

// Plays one vector with the stub of the server. Prints what was wrong, and exits with 0 if nothing was.

declare(strict_types=1);

use Forrst\Tests\Support\Process;
use Forrst\Tests\Support\Server;
use Forrst\Tests\Vectors\Player;

require dirname(__DIR__) . '/autoload.php';

$stub = new Process([Server::binary(), 'conformance', 'stub', '--vector', $argv[1]]);
$vector = json_decode($stub->line(), true, 64, JSON_THROW_ON_ERROR);
$player = new Player($vector['url'], $vector['client']);
$outcome = [];
foreach ($vector['do'] as $step) {
    $name = (string) array_key_first($step);
    $outcome[] = $player->run($name, $step[$name]);
}
$stub->write(json_encode(['outcome' => $outcome], JSON_THROW_ON_ERROR) . "\n");
echo json_encode($outcome), "\n";
while (($line = $stub->tryLine()) !== null) {
    echo $line, "\n";
}
exit($stub->wait());

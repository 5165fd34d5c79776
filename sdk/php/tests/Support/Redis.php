<?php

declare(strict_types=1);

namespace Forrst\Tests\Support;

use RuntimeException;

/**
 * A Redis on a free port, with its files in a temporary folder.
 */
final class Redis
{
    public readonly string $url;
    private readonly Folder $folder;
    private readonly Process $process;

    public function __construct()
    {
        $this->folder = new Folder();
        $socket = stream_socket_server('tcp://127.0.0.1:0') ?: throw new RuntimeException('there is no free port');
        $port = substr((string) strrchr((string) stream_socket_get_name($socket, false), ':'), 1);
        fclose($socket);
        $this->url = "redis://127.0.0.1:$port";
        $this->process = new Process([
            'redis-server', '--port', $port, '--bind', '127.0.0.1', '--dir', $this->folder->path, '--save', '',
            '--appendonly', 'yes', '--maxmemory-policy', 'noeviction',
        ]);
        do {
            $line = $this->process->line();
        } while (!str_contains($line, 'Ready to accept connections'));
    }
}

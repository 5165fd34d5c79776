<?php

declare(strict_types=1);

namespace Forrst\Tests\Support;

use Forrst\Client;
use RuntimeException;

/**
 * A real server, of the binary that `FORRST_BIN` names.
 */
final class Server
{
    public readonly string $url;
    private ?Process $process;

    /** @param list<string> $options */
    public function __construct(string $store = 'memory:', private array $options = [])
    {
        $this->options = [...$options, '--store', $store];
        $this->url = $this->start('127.0.0.1:0');
    }

    public static function binary(): string
    {
        return getenv('FORRST_BIN') ?: throw new RuntimeException('FORRST_BIN has to name the binary of forrst');
    }

    public function client(mixed ...$settings): Client
    {
        return new Client($this->url, ...$settings);
    }

    /** Runs code in another PHP process. */
    public function php(string $code): Process
    {
        return Process::php($this->url, $code);
    }

    public function stop(int $signal = SIGTERM): void
    {
        $this->process?->signal($signal);
        $this->process?->wait();
        $this->process = null;
    }

    /** Starts it again, with the same address and store. */
    public function startAgain(): void
    {
        $this->start((string) preg_replace('~^https?://~', '', $this->url));
    }

    private function start(string $address): string
    {
        $command = [self::binary(), 'serve', '--demo', '--listen', $address, ...$this->options];
        $this->process = new Process($command, ['FORRST_LOG_LEVEL' => 'error']);
        while (($line = $this->process->tryLine()) !== null) {
            if (preg_match('~(https?://[\d.:]+)/forrst~', $line, $found) === 1) {
                return $found[1];
            }
        }
        throw new RuntimeException('the server did not start');
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Tests\Support;

use RuntimeException;

/**
 * A program that a test has started, and that ends with the test.
 */
final class Process
{
    /** How long a busy machine may take for anything that a test waits for. */
    public const PATIENCE = 60.0;

    /** @var resource */
    private $process;

    /** @var resource */
    private $output;

    private string $received = '';

    /** @var resource */
    private $input;

    private ?int $exitCode = null;

    /**
     * @param list<string> $command
     * @param array<string, string> $environment
     */
    public function __construct(private readonly array $command, array $environment = [])
    {
        $pipes = [];
        $process = proc_open($command, [['pipe', 'r'], ['pipe', 'w']], $pipes, null, $environment + getenv());
        $this->process = is_resource($process) ? $process : throw new RuntimeException("cannot start $command[0]");
        [$this->input, $this->output] = $pipes;
        stream_set_blocking($this->output, false);
    }

    /** Another PHP process, which runs this code with a client as `$client`, and with `say` to write a line. */
    public static function php(string $url, string $code): self
    {
        return new self([PHP_BINARY, dirname(__DIR__) . '/child.php', $url, $code]);
    }

    /** The next line that it writes. */
    public function line(): string
    {
        return $this->tryLine() ?? throw new RuntimeException("{$this->command[0]} ended without a line");
    }

    /** The next line that it writes; null if it ends first. */
    public function tryLine(): ?string
    {
        $until = microtime(true) + self::PATIENCE;
        while (!str_contains($this->received, "\n")) {
            $read = [$this->output];
            $none = null;
            stream_select($read, $none, $none, 1);
            $bytes = (string) fread($this->output, 65_536);
            $this->received .= $bytes;
            if ($bytes === '' && feof($this->output)) {
                return null;
            }
            if (microtime(true) > $until) {
                throw new RuntimeException("no line of {$this->command[0]} in time");
            }
        }
        [$line, $this->received] = explode("\n", $this->received, 2);
        return $line;
    }

    public function write(string $text): void
    {
        fwrite($this->input, $text);
        fflush($this->input);
    }

    public function signal(int $signal): void
    {
        proc_terminate($this->process, $signal);
    }

    /** Whether it has ended. */
    public function hasEnded(): bool
    {
        // Otherwise a full pipe would stop it.
        $this->received .= (string) fread($this->output, 65_536);
        $status = proc_get_status($this->process);
        if (!$status['running']) {
            // PHP tells it once.
            $this->exitCode ??= $status['exitcode'];
        }
        return !$status['running'];
    }

    /** Waits for its end, and returns its exit code. */
    public function wait(): int
    {
        $until = microtime(true) + self::PATIENCE;
        while (!$this->hasEnded()) {
            if (microtime(true) > $until) {
                throw new RuntimeException("{$this->command[0]} did not end in time");
            }
            usleep(5_000);
        }
        return (int) $this->exitCode;
    }

    public function __destruct()
    {
        if (!$this->hasEnded()) {
            proc_terminate($this->process, SIGKILL);
        }
        proc_close($this->process);
    }
}

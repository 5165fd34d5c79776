<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Interrupted;
use Forrst\Exception\NotUnderstood;

/**
 * Sends requests, each on a connection that no other request uses meanwhile, and keeps connections for the next.
 *
 * @internal
 */
final class Transport
{
    /** Servers close connections that are idle for a minute. */
    private const MAX_IDLE = 30.0;
    private const MAX_KEPT = 4;

    /** @var list<Connection> */
    private array $idle = [];

    /** Connections must not be shared with a process that was forked. */
    private int $process;

    private readonly Framing $framing;

    public function __construct(private readonly Endpoint $endpoint, private readonly Settings $settings)
    {
        $this->process = (int) getmypid();
        $this->framing = $endpoint->host === null ? new UnixFraming() : new HttpFraming($endpoint, $settings);
    }

    /** Sends a request, and returns its answer. */
    public function send(string $body, float $until): Answer
    {
        $exchange = $this->start($body, $until);
        try {
            return $exchange->poll($until) ?? throw Connection::lost('it took too long');
        } catch (Interrupted | NotUnderstood $error) {
            // Other connections have the same fate, often.
            $this->closeIdle();
            throw $error;
        } finally {
            $exchange->abandon();
        }
    }

    /** Sends a request, whose answer is read later. */
    public function start(string $body, float $until): Exchange
    {
        $connection = $this->takeIdle() ?? Connection::open($this->endpoint, $this->settings, $until);
        $exchange = new Exchange($this, $this->framing, $connection);
        $connection->write($this->framing->request($body), $until);
        return $exchange;
    }

    public function giveBack(Connection $connection): void
    {
        if (count($this->idle) >= self::MAX_KEPT || $this->process !== getmypid()) {
            $connection->close();
            return;
        }
        $connection->idleSince = Clock::now();
        $this->idle[] = $connection;
    }

    private function takeIdle(): ?Connection
    {
        if ($this->process !== getmypid()) {
            $this->idle = [];
            $this->process = (int) getmypid();
        }
        while (($connection = array_pop($this->idle)) !== null) {
            if (Clock::now() - $connection->idleSince < self::MAX_IDLE && $connection->isIdle()) {
                return $connection;
            }
            $connection->close();
        }
        return null;
    }

    private function closeIdle(): void
    {
        foreach ($this->idle as $connection) {
            $connection->close();
        }
        $this->idle = [];
    }
}

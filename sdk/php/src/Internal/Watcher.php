<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\ForrstException;
use Forrst\Exception\Forbidden;
use Forrst\Exception\NotUnderstood;
use Forrst\Exception\Rejected;
use Forrst\Exception\Unauthorized;
use Forrst\Held;
use Forrst\Loss;
use Forrst\Response;

/**
 * Watches a lease on a connection of its own: one request after the other, each answered as soon as the leases on the key change.
 * Nothing runs meanwhile: whether an answer has arrived is found out when the lease is asked for.
 *
 * @internal
 */
final class Watcher
{
    /** How long the server takes to answer if nothing changes. */
    private const WAIT = 30.0;

    /** How long to connect at most, since the caller waits for it. */
    private const PATIENCE = 1.0;

    /** The pause after an answer that proves nothing, and after a failure. */
    private const PAUSE = 1.0;

    /** Whether an answer does not show the lease, and does not show all of them either: its extension will tell. */
    public bool $isInDoubt = false;

    private ?Exchange $exchange = null;
    private string $id = '';
    private ?string $revision = null;
    private float $answerUntil = 0.0;
    private float $pauseUntil = 0.0;
    private bool $isRefused = false;

    public function __construct(private readonly Connector $connector, private readonly Held $held)
    {
    }

    /** The loss that an answer has proven. It does not wait for one. */
    public function poll(): ?Loss
    {
        try {
            if ($this->exchange === null) {
                $this->start();
            }
            while (($answer = $this->exchange?->poll(0.0)) !== null) {
                $loss = $this->read(Response::read($answer, $this->id));
                if ($loss !== null) {
                    return $loss;
                }
                $this->start();
            }
            if ($this->exchange !== null && Clock::now() > $this->answerUntil) {
                $this->stop();
            }
        } catch (ForrstException $error) {
            // A failed watch proves nothing.
            $this->stop();
            $this->isRefused = $error instanceof Rejected || $error instanceof Forbidden || $error instanceof Unauthorized;
            $this->pauseUntil = Clock::now() + self::PAUSE;
        }
        return null;
    }

    /** What becomes readable when there is an answer. */
    public function stream(): mixed
    {
        return $this->exchange?->stream();
    }

    public function stop(): void
    {
        $this->exchange?->abandon();
        $this->exchange = null;
    }

    private function start(): void
    {
        $this->exchange = null;
        if ($this->isRefused || Clock::now() < $this->pauseUntil) {
            return;
        }
        $arguments = [
            'key' => $this->held->fullKey,
            'owner' => $this->held->owner,
            'wait' => Duration::toWire(self::WAIT),
        ];
        if ($this->revision !== null) {
            $arguments['since'] = $this->revision;
        }
        $this->answerUntil = Clock::now() + self::WAIT + $this->connector->timeout;
        [$this->exchange, $this->id] = $this->connector->start(
            Connector::LOCKS . 'watch',
            $arguments,
            Clock::now() + self::PATIENCE,
        );
    }

    private function read(Response $response): ?Loss
    {
        $failure = $response->failure();
        if ($failure !== null) {
            throw $failure->toException();
        }
        $status = $response->result;
        $fences = array_column(is_array($status['holders'] ?? null) ? $status['holders'] : [], 'fence');
        $count = $status['holder_count'] ?? null;
        $isHere = in_array($this->held->fence, $fences, true);
        if (!$isHere && (($status['locked'] ?? null) === false || (is_int($count) && $count <= count($fences)))) {
            return Loss::proven('the lease has ended on the server');
        }
        if (!is_string($status['revision'] ?? null)) {
            throw new NotUnderstood('the answer to `watch` has no revision');
        }
        $this->revision = $status['revision'];
        if (!$isHere) {
            $this->isInDoubt = true;
            $this->pauseUntil = Clock::now() + self::PAUSE;
        }
        return null;
    }
}

<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\Interrupted;

/**
 * One request under way: it was written, and its answer is read as it arrives.
 *
 * @internal
 */
final class Exchange
{
    private bool $isDone = false;

    public function __construct(
        private readonly Transport $transport,
        private readonly Framing $framing,
        private readonly Connection $connection,
    ) {
    }

    /** The answer, if it arrives until then. */
    public function poll(float $until): ?Answer
    {
        $isClosed = false;
        do {
            $answer = $this->framing->answer($this->connection->received, $isClosed);
            if ($answer !== null) {
                $this->isDone = true;
                $answer[1] ? $this->transport->giveBack($this->connection) : $this->connection->close();
                return $answer[0];
            }
            if ($isClosed) {
                throw Connection::lost('the connection was closed');
            }
            try {
                $hasMore = $this->connection->read($until);
            } catch (Interrupted) {
                [$isClosed, $hasMore] = [true, true];
            }
        } while ($hasMore);
        return null;
    }

    /** What becomes readable when there is more of the answer. */
    public function stream(): mixed
    {
        return $this->connection->stream();
    }

    /** Gives up the answer. A call that waits for its lock leaves the queue. */
    public function abandon(): void
    {
        if (!$this->isDone) {
            $this->isDone = true;
            $this->connection->close();
        }
    }

    public function __destruct()
    {
        $this->abandon();
    }
}

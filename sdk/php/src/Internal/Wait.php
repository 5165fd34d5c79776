<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\ForrstException;
use Forrst\Exception\Rejected;
use Forrst\Exception\TimedOut;

/**
 * How long a request waits for its lock. A retry has only what is left, and a wait that is longer than the server allows is
 * several requests.
 *
 * @internal
 */
final class Wait
{
    private ?float $since = null;

    /** The longest wait of one request, once the server has refused a longer one. */
    private ?float $limit = null;

    public function __construct(private readonly ?float $whole)
    {
    }

    /** The `block` of the next try. */
    public function next(): ?float
    {
        if ($this->whole === null) {
            return null;
        }
        if ($this->since === null) {
            $this->since = Clock::now();
            return min($this->whole, $this->limit ?? INF);
        }
        return min($this->left(), $this->limit ?? INF);
    }

    /** For a retry after the lock was refused: it waits for the whole time again. */
    public function restart(): void
    {
        $this->since = null;
    }

    /** Whether the wait goes on after this error at once, because the server waits for a shorter time than the caller. */
    public function goesOnAfter(ForrstException $error, Connector $connector): bool
    {
        if ($this->whole === null) {
            return false;
        }
        if ($error instanceof TimedOut) {
            return $this->limit !== null && $this->left() > 0.001;
        }
        if ($this->limit === null && $error instanceof Rejected && str_ends_with((string) $error->pointer(), '/block')) {
            $capabilities = $connector->ask('urn:cline:forrst:fn:capabilities', []);
            $this->limit = Duration::seconds($capabilities['limits']['max_lock_block'] ?? null);
            return $this->limit !== null && $this->limit < $this->whole;
        }
        return false;
    }

    private function left(): float
    {
        return max(0.0, (float) $this->whole - (Clock::now() - (float) $this->since));
    }
}

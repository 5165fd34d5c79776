<?php

declare(strict_types=1);

namespace Forrst\Internal;

/**
 * For how long a lease is certainly held.
 *
 * @internal
 */
final class Term
{
    public readonly float $until;

    /**
     * @param float $proven just before the request was sent whose answer proves it
     * @param float $span how long it lasts on the server from then on
     */
    public function __construct(public readonly float $proven, float $span)
    {
        // The clocks of two machines run at different rates, and stores count whole milliseconds.
        $margin = $span / 100 + 0.002;
        $this->until = $proven + max(0.0, $span - $margin);
    }
}

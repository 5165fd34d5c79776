<?php

declare(strict_types=1);

namespace Forrst\Laravel;

use Forrst\Client;
use Illuminate\Cache\CacheManager;
use Illuminate\Support\ServiceProvider;

/**
 * Adds the driver `forrst` to Laravel's cache. A store in `config/cache.php`:
 *
 *     'forrst' => [
 *         'driver' => 'forrst',
 *         'url' => env('FORRST_URL', 'http://127.0.0.1:7420'),
 *         'key' => env('FORRST_API_KEY'),
 *         'store' => 'redis', // for values
 *     ],
 */
final class ForrstServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $this->app->resolving('cache', static function (CacheManager $manager): void {
            self::extend($manager);
        });
        if ($this->app->resolved('cache')) {
            self::extend($this->app->make('cache'));
        }
    }

    /** Adds the driver to a manager, also in applications that have no service providers. */
    public static function extend(CacheManager $manager): void
    {
        $client = self::client(...);
        // Laravel binds this to the manager, so it must not be static, and `self` would be the manager.
        $manager->extend('forrst', function (mixed $app, array $config) use ($manager, $client): mixed {
            $prefix = $config['prefix'] ?? $app['config']['cache.prefix'] ?? '';
            $values = isset($config['store']) ? $manager->store($config['store']) : null;
            $longest = $config['longest'] ?? 86_400;
            $store = new ForrstStore($client($config), $prefix, $values, $longest, $config['note'] ?? null);
            return $manager->repository($store);
        });
    }

    /** @param array<string, mixed> $config */
    private static function client(array $config): Client
    {
        return new Client(
            $config['url'] ?? 'http://127.0.0.1:7420',
            ($config['key'] ?? null) ?: null,
            $config['ca_file'] ?? null,
            $config['client_certificate'] ?? null,
            $config['client_key'] ?? null,
            connectTimeout: $config['connect_timeout'] ?? 5,
            timeout: $config['timeout'] ?? 60,
        );
    }
}

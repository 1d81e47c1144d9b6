package org.apache.hudi.client.transaction.lock;

import java.net.URI;
import java.util.UUID;
import org.apache.hudi.aws.transaction.lock.S3StorageLockClient;
import org.apache.hudi.client.transaction.lock.models.LockProviderHeartbeatManager;
import org.apache.hudi.common.config.LockConfiguration;
import org.apache.hudi.storage.StorageConfiguration;
import org.slf4j.LoggerFactory;

/**
 * Hudi's StorageBasedLockProvider with a client for a local HTTP server instead of a cloud client.
 *
 * <p>Hudi has no client for local disks, and chooses the client by the scheme of the table's location.
 */
public class BridgedStorageLockProvider extends StorageBasedLockProvider {
  private static final String URL = "hoodie.test.lock.url";

  public BridgedStorageLockProvider(LockConfiguration configuration, StorageConfiguration<?> ignored) {
    super(
        UUID.randomUUID().toString(),
        configuration.getConfig(),
        LockProviderHeartbeatManager::new,
        (owner, path, properties) -> new S3StorageLockClient(URI.create(properties.getString(URL))),
        LoggerFactory.getLogger(BridgedStorageLockProvider.class),
        null);
  }
}

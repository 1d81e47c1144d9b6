import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.util.function.Function;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;

/**
 * Runs HoodieMetadataTableValidator of hudi-utilities with all of its checks. The class is loaded by name, because only
 * some machines have it. The argument is the location of a table. Returns the messages of the failure, or an empty text.
 */
public final class MetadataValidator implements Function<String, String> {
  private static final String NAME = "org.apache.hudi.utilities.HoodieMetadataTableValidator";
  private static final String[] CHECKS = {
    "validateLatestFileSlices", "validateLatestBaseFiles", "validateAllFileGroups", "validateAllColumnStats",
    "validatePartitionStats", "validateBloomFilters", "validateRecordIndexCount", "validateRecordIndexContent",
    "validateSecondaryIndex"
  };

  @Override
  public String apply(String location) {
    try {
      ClassLoader loader = getClass().getClassLoader();
      Thread.currentThread().setContextClassLoader(loader);
      Class<?> kind = Class.forName(NAME, true, loader);
      Class<?> settings = Class.forName(NAME + "$Config", true, loader);
      Object config = settings.getDeclaredConstructor().newInstance();
      settings.getField("basePath").set(config, "file:" + location);
      for (String check : CHECKS) {
        Field field = settings.getField(check);
        field.set(config, true);
      }
      JavaSparkContext context = JavaSparkContext.fromSparkContext(SparkSession.active().sparkContext());
      Object validator = kind.getConstructor(JavaSparkContext.class, settings).newInstance(context, config);
      boolean passed = (boolean) kind.getMethod("run").invoke(validator);
      boolean failed = (boolean) kind.getMethod("hasValidationFailure").invoke(validator);
      return passed && !failed ? "" : "the validator returned false";
    } catch (InvocationTargetException error) {
      return messages(error.getCause());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String messages(Throwable error) {
    StringBuilder found = new StringBuilder();
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      found.append(cause).append('\n');
    }
    return found.toString();
  }
}

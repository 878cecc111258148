package lakeshare.tests;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, setting permissions by a system call.
 *
 * Without its native library, Hadoop starts a process `chmod` up to four times for each file that it writes. In tests,
 * whose tables have many small files, that was more than a third of Spark's processor time.
 *
 * After a change, in this folder, with PySpark's `jars` folder in JARS:
 *   javac --release 17 -cp "$JARS/*" -d /tmp/classes *.java
 *   jar cf spark_classes.jar *.java *.xml -C /tmp/classes .
 */
public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  static class Raw extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      String symbols =
          permission.getUserAction().SYMBOL
              + permission.getGroupAction().SYMBOL
              + permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(
          pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
    }
  }
}

"""Ways to run a job on a cluster: YARN, Kubernetes, Livy, EMR, Dataproc and Databricks, each one module.

    protocol    the protocol `Submission`, and the request, the application and the status that it uses
    choice      selects the submission by the argument `submission` or by the type of the Airflow connection
    tasks       what a task does with a submission: submit, reattach, wait, end
    trigger     the same wait in the triggerer

The job on the cluster gets the same `JobCommand` as with spark-submit on the host of the task, and writes the same
`JobReport` to the store of reports. The report decides about the outcome, because exit codes of clusters do not.
"""

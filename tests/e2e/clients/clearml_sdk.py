"""Makes a task with the stock SDK, from outside, and puts it in a queue; prints its id and state as JSON.

Arguments: the queue, the task's name, a file with its script.
"""

import json
import sys

from clearml import Task

queue, name, path = sys.argv[1:]
task = Task.create(project_name="divvy", task_name=name, task_type="training")
script = {
    "diff": open(path).read(),
    "entry_point": "train.py",
    "working_dir": ".",
    "binary": "python3",
    "repository": "",
    "requirements": {"pip": ""},
}
task._edit(script=script)
Task.enqueue(task, queue_name=queue)
print(json.dumps({"id": task.id, "status": str(task.get_status())}), flush=True)

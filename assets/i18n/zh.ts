<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="zh_CN" sourcelanguage="en">
<context>
    <name>ChoiceEditor</name>
    <message>
        <source>(empty)</source>
        <translation>（空）</translation>
    </message>
</context>
<context>
    <name>ConversationPanel</name>
    <message>
        <source>{0} cannot be written: {1}</source>
        <translation>无法写入 {0}：{1}</translation>
    </message>
    <message>
        <source>Saved as {0}</source>
        <translation>已保存为 {0}</translation>
    </message>
    <message>
        <source>Conversation</source>
        <translation>对话</translation>
    </message>
    <message>
        <source>Speak, or type a question below.</source>
        <translation>请直接说话，或在下方输入问题。</translation>
    </message>
    <message>
        <source>Newest ↓</source>
        <translation>最新 ↓</translation>
    </message>
    <message>
        <source>Go to the newest line</source>
        <translation>跳到最新一行</translation>
    </message>
    <message>
        <source>Type a question and press Enter</source>
        <translation>输入问题，按回车发送</translation>
    </message>
    <message>
        <source>Question</source>
        <translation>问题</translation>
    </message>
    <message>
        <source>&amp;Stop</source>
        <translation>停止(&amp;S)</translation>
    </message>
    <message>
        <source>Stop the answer (Esc)</source>
        <translation>停止回答 (Esc)</translation>
    </message>
    <message>
        <source>S&amp;end</source>
        <translation>发送(&amp;E)</translation>
    </message>
    <message>
        <source>Ask what is typed (Enter)</source>
        <translation>发送输入的问题 (Enter)</translation>
    </message>
    <message>
        <source>&amp;Find</source>
        <translation>查找(&amp;F)</translation>
    </message>
    <message>
        <source>Search the conversation (Ctrl+F)</source>
        <translation>在对话中查找 (Ctrl+F)</translation>
    </message>
    <message>
        <source>Co&amp;py</source>
        <translation>复制(&amp;P)</translation>
    </message>
    <message>
        <source>Copy what is selected, or everything</source>
        <translation>复制所选内容；未选择时复制全部</translation>
    </message>
    <message>
        <source>E&amp;xport</source>
        <translation>导出(&amp;X)</translation>
    </message>
    <message>
        <source>Save the conversation as text or Markdown</source>
        <translation>将对话保存为文本或 Markdown</translation>
    </message>
    <message>
        <source>Loading the models…</source>
        <translation>正在加载模型…</translation>
    </message>
    <message>
        <source>Ended</source>
        <translation>已结束</translation>
    </message>
    <message>
        <source>Listening</source>
        <translation>正在聆听</translation>
    </message>
    <message>
        <source>Hearing you</source>
        <translation>听到您说话</translation>
    </message>
    <message>
        <source>Thinking</source>
        <translation>思考中</translation>
    </message>
    <message>
        <source>Speaking</source>
        <translation>正在说话</translation>
    </message>
    <message>
        <source>{0}, microphone muted</source>
        <translation>{0}，麦克风已静音</translation>
    </message>
    <message>
        <source>Microphone muted</source>
        <translation>麦克风已静音</translation>
    </message>
    <message>
        <source>State: {0}</source>
        <translation>状态：{0}</translation>
    </message>
    <message>
        <source>&amp;Talk</source>
        <translation>说话(&amp;T)</translation>
    </message>
    <message>
        <source>Listen to the microphone again; F8 does it while held</source>
        <translation>重新接收麦克风声音；按住 F8 可临时说话</translation>
    </message>
    <message>
        <source>&amp;Mute</source>
        <translation>静音(&amp;M)</translation>
    </message>
    <message>
        <source>Stop listening to the microphone</source>
        <translation>停止接收麦克风声音</translation>
    </message>
    <message>
        <source>Export the conversation</source>
        <translation>导出对话</translation>
    </message>
    <message>
        <source>Markdown (*.md)</source>
        <translation>Markdown (*.md)</translation>
    </message>
    <message>
        <source>Text (*.txt)</source>
        <translation>文本 (*.txt)</translation>
    </message>
</context>
<context>
    <name>DevicesPanel</name>
    <message>
        <source>{0} (not connected)</source>
        <translation>{0}（未连接）</translation>
    </message>
    <message>
        <source>System default: {0}</source>
        <translation>系统默认：{0}</translation>
    </message>
    <message>
        <source>System default</source>
        <translation>系统默认</translation>
    </message>
    <message>
        <source>By name: it is found again wherever it is plugged in</source>
        <translation>按名称记忆：插到任何接口都能重新识别</translation>
    </message>
    <message>
        <source>In use: —</source>
        <translation>正在使用：—</translation>
    </message>
    <message>
        <source>In use: {0}; {1} Hz, {2} ms output latency, {3}</source>
        <translation>正在使用：{0}；{1} Hz，输出延迟 {2} ms，{3}</translation>
    </message>
    <message>
        <source>Lost {0}: {1}</source>
        <translation>设备 {0} 已断开：{1}</translation>
    </message>
    <message>
        <source>The microphone gives no signal. Unmute it, on the device too; allow programs to use it; or choose another.</source>
        <translation>麦克风没有信号。请取消静音（包括设备上的开关），允许程序使用麦克风，或改选其他麦克风。</translation>
    </message>
    <message>
        <source>The sound system did not answer when it was asked for its devices.</source>
        <translation>查询设备时，系统音频服务没有响应。</translation>
    </message>
    <message>
        <source>The choice is kept, but {0} says otherwise and counts for more.</source>
        <translation>选择已保存，但 {0} 另有设定且优先级更高。</translation>
    </message>
    <message>
        <source>Opening the devices…</source>
        <translation>正在打开设备…</translation>
    </message>
    <message>
        <source>Listening: say something</source>
        <translation>正在聆听：请说句话</translation>
    </message>
    <message>
        <source>You should hear a tone</source>
        <translation>您应该能听到测试音</translation>
    </message>
    <message>
        <source>Measuring the echo: three sweeps</source>
        <translation>正在测量回声：播放三次扫频音</translation>
    </message>
    <message>
        <source>Ending the conversation…</source>
        <translation>正在结束对话…</translation>
    </message>
    <message>
        <source>The conversation does not end, so nothing was tested.</source>
        <translation>对话未能结束，因此没有进行测试。</translation>
    </message>
    <message>
        <source>If you heard no tone, turn the loudspeaker up or choose another.</source>
        <translation>如果没有听到测试音，请调高音量或改选其他扬声器。</translation>
    </message>
    <message>
        <source>&amp;Microphone</source>
        <translation>麦克风(&amp;M)</translation>
    </message>
    <message>
        <source>&amp;Loudspeaker</source>
        <translation>扬声器(&amp;L)</translation>
    </message>
    <message>
        <source>Level of {0}</source>
        <translation>{0} 的电平</translation>
    </message>
    <message>
        <source>Level in the conversation that runs</source>
        <translation>当前对话中的电平</translation>
    </message>
    <message>
        <source>&amp;Use these</source>
        <translation>使用所选设备(&amp;U)</translation>
    </message>
    <message>
        <source>Keep the choice; the conversation begins again with it</source>
        <translation>保存选择，并用它重新开始对话</translation>
    </message>
    <message>
        <source>L&amp;ook again</source>
        <translation>重新检测(&amp;O)</translation>
    </message>
    <message>
        <source>List the devices anew</source>
        <translation>重新列出设备</translation>
    </message>
    <message>
        <source>Play a &amp;tone</source>
        <translation>播放测试音(&amp;T)</translation>
    </message>
    <message>
        <source>A second of 440 Hz from the loudspeaker above</source>
        <translation>从上面所选扬声器播放一秒 440 Hz 声音</translation>
    </message>
    <message>
        <source>&amp;Check both</source>
        <translation>全面检查(&amp;C)</translation>
    </message>
    <message>
        <source>Microphone, tone and three sweeps: about 11 seconds</source>
        <translation>依次检查麦克风、测试音和三次扫频，约 11 秒</translation>
    </message>
    <message>
        <source>Test</source>
        <translation>测试</translation>
    </message>
    <message>
        <source>For a test the conversation ends, and begins again behind it with what was said so far.</source>
        <translation>测试时对话会暂时结束，测试后带着已有内容重新开始。</translation>
    </message>
    <message>
        <source>Level in the test</source>
        <translation>测试电平</translation>
    </message>
    <message>
        <source>Warnings</source>
        <translation>警告</translation>
    </message>
    <message>
        <source>Result of the test</source>
        <translation>测试结果</translation>
    </message>
</context>
<context>
    <name>DoctorPanel</name>
    <message>
        <source>Doctor</source>
        <translation>诊断</translation>
    </message>
    <message>
        <source>What was checked</source>
        <translation>检查项目</translation>
    </message>
    <message>
        <source>State</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>Check</source>
        <translation>项目</translation>
    </message>
    <message>
        <source>Found, and what to do</source>
        <translation>结果与建议</translation>
    </message>
    <message>
        <source>Time</source>
        <translation>用时</translation>
    </message>
    <message>
        <source>&amp;Measure the models too</source>
        <translation>同时测量模型(&amp;M)</translation>
    </message>
    <message>
        <source>Runs each model once: about a minute, and a conversation may stutter</source>
        <translation>每个模型运行一次，约需一分钟，期间对话可能卡顿</translation>
    </message>
    <message>
        <source>Measure the models too</source>
        <translation>同时测量模型</translation>
    </message>
    <message>
        <source>&amp;Copy report</source>
        <translation>复制报告(&amp;C)</translation>
    </message>
    <message>
        <source>Copy all lines as text, as the command vivavoce doctor prints them</source>
        <translation>以文本形式复制全部内容，与命令 vivavoce doctor 的输出相同</translation>
    </message>
    <message>
        <source>Copy report</source>
        <translation>复制报告</translation>
    </message>
    <message>
        <source>ok</source>
        <translation>正常</translation>
    </message>
    <message>
        <source>note</source>
        <translation>提示</translation>
    </message>
    <message>
        <source>problem</source>
        <translation>问题</translation>
    </message>
    <message>
        <source>&amp;Stop</source>
        <translation>停止(&amp;S)</translation>
    </message>
    <message>
        <source>&amp;Run again</source>
        <translation>重新检查(&amp;R)</translation>
    </message>
    <message>
        <source>End after the check that is under way</source>
        <translation>完成当前检查后停止</translation>
    </message>
    <message>
        <source>Check everything again</source>
        <translation>重新检查全部项目</translation>
    </message>
    <message>
        <source>Checking… {0} lines so far</source>
        <translation>正在检查… 已完成 {0} 项</translation>
    </message>
    <message>
        <source>Not ready: mend what is marked as a problem.</source>
        <translation>尚未就绪：请解决标为“问题”的项目。</translation>
    </message>
    <message>
        <source>Not everything was checked.</source>
        <translation>检查未全部完成。</translation>
    </message>
    <message>
        <source>Ready to talk.</source>
        <translation>一切就绪，可以对话。</translation>
    </message>
</context>
<context>
    <name>EmotionPanel</name>
    <message>
        <source>Emotion</source>
        <translation>情绪</translation>
    </message>
    <message>
        <source>Nothing measures the emotion in a voice yet.</source>
        <translation>目前尚不能识别语音情绪。</translation>
    </message>
</context>
<context>
    <name>FailedPanel</name>
    <message>
        <source>This panel failed and is closed: {0}</source>
        <translation>此面板出错，已关闭：{0}</translation>
    </message>
</context>
<context>
    <name>FindBar</name>
    <message>
        <source>{0} of {1}</source>
        <translation>第 {0} 个，共 {1} 个</translation>
    </message>
    <message>
        <source>none</source>
        <translation>无结果</translation>
    </message>
    <message>
        <source>Search the conversation</source>
        <translation>在对话中查找</translation>
    </message>
    <message>
        <source>Place among the matches</source>
        <translation>当前匹配位置</translation>
    </message>
    <message>
        <source>Previous</source>
        <translation>上一个</translation>
    </message>
    <message>
        <source>The match before (Shift+Enter, Shift+F3)</source>
        <translation>上一个匹配 (Shift+Enter, Shift+F3)</translation>
    </message>
    <message>
        <source>Next</source>
        <translation>下一个</translation>
    </message>
    <message>
        <source>The next match (Enter, F3)</source>
        <translation>下一个匹配 (Enter, F3)</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>End the search (Esc)</source>
        <translation>结束查找 (Esc)</translation>
    </message>
</context>
<context>
    <name>FolderEditor</name>
    <message>
        <source>Choose a folder</source>
        <translation>选择文件夹</translation>
    </message>
</context>
<context>
    <name>LatencyPanel</name>
    <message>
        <source>budget {0}</source>
        <translation>目标 {0}</translation>
    </message>
    <message>
        <source>median</source>
        <translation>中位数</translation>
    </message>
    <message>
        <source>Half of the turns were answered in this time or less</source>
        <translation>半数轮次的响应时间不超过此值</translation>
    </message>
    <message>
        <source>p95</source>
        <translation>P95</translation>
    </message>
    <message>
        <source>19 of 20 turns were answered in this time or less</source>
        <translation>95% 的轮次响应时间不超过此值</translation>
    </message>
    <message>
        <source>p99</source>
        <translation>P99</translation>
    </message>
    <message>
        <source>99 of 100 turns were answered in this time or less</source>
        <translation>99% 的轮次响应时间不超过此值</translation>
    </message>
    <message>
        <source>to fall silent</source>
        <translation>打断停声</translation>
    </message>
    <message>
        <source>Median time for which a reply goes on after you begin to speak</source>
        <translation>您开口打断后回复停下所需时间的中位数</translation>
    </message>
    <message>
        <source>As &amp;table</source>
        <translation>表格(&amp;T)</translation>
    </message>
    <message>
        <source>Latency as a table</source>
        <translation>以表格显示延迟</translation>
    </message>
    <message>
        <source>Show the same figures as a table</source>
        <translation>以表格显示同样的数据</translation>
    </message>
    <message>
        <source>The last turns, step by step</source>
        <translation>最近各轮的分步延迟</translation>
    </message>
    <message>
        <source>From your last word to the answer&apos;s first sound</source>
        <translation>从您说完最后一个字到听到回答的第一声</translation>
    </message>
    <message>
        <source>Latency of the last turns in ms</source>
        <translation>最近各轮的延迟（ms）</translation>
    </message>
    <message>
        <source>Real time</source>
        <translation>实时性</translation>
    </message>
    <message>
        <source>end of turn</source>
        <translation>断句</translation>
    </message>
    <message>
        <source>recognition</source>
        <translation>识别</translation>
    </message>
    <message>
        <source>first token</source>
        <translation>首词元</translation>
    </message>
    <message>
        <source>first clause</source>
        <translation>首个分句</translation>
    </message>
    <message>
        <source>voice</source>
        <translation>语音合成</translation>
    </message>
    <message>
        <source>playback</source>
        <translation>播放</translation>
    </message>
    <message>
        <source>output</source>
        <translation>输出</translation>
    </message>
    <message>
        <source>No turn yet: say something.</source>
        <translation>还没有对话轮次：请说句话。</translation>
    </message>
    <message>
        <source>Turn {0}: {1} — {2}</source>
        <translation>第 {0} 轮：{1} — {2}</translation>
    </message>
    <message>
        <source>; interrupted, silent after {0}</source>
        <translation>；被打断，{0} 后停声</translation>
    </message>
    <message>
        <source>Real time: not measured yet</source>
        <translation>实时性：尚未测量</translation>
    </message>
    <message>
        <source>Keeps up with the sound</source>
        <translation>处理速度跟得上声音</translation>
    </message>
    <message>
        <source>Hardly keeps up with the sound</source>
        <translation>处理速度勉强跟上声音</translation>
    </message>
    <message>
        <source>Sound was lost</source>
        <translation>有声音丢失</translation>
    </message>
    <message>
        <source>ear done {0:.1f} ms after the block (p99), {1:.0f} ms lost, {2} late results</source>
        <translation>音频块处理用时 {0:.1f} ms (P99)，丢失 {1:.0f} ms，迟到结果 {2} 个</translation>
    </message>
    <message>
        <source>{0}: {1}</source>
        <translation>{0}：{1}</translation>
    </message>
    <message>
        <source>turn</source>
        <translation>轮次</translation>
    </message>
    <message>
        <source>sum</source>
        <translation>合计</translation>
    </message>
</context>
<context>
    <name>LogPanel</name>
    <message>
        <source>Log</source>
        <translation>日志</translation>
    </message>
    <message>
        <source>Records of the log, newest last</source>
        <translation>日志记录，最新的在最后</translation>
    </message>
    <message>
        <source>Time (UTC)</source>
        <translation>时间 (UTC)</translation>
    </message>
    <message>
        <source>Process</source>
        <translation>进程</translation>
    </message>
    <message>
        <source>Level</source>
        <translation>级别</translation>
    </message>
    <message>
        <source>Message</source>
        <translation>消息</translation>
    </message>
    <message>
        <source>all</source>
        <translation>全部</translation>
    </message>
    <message>
        <source>&amp;Process</source>
        <translation>进程(&amp;P)</translation>
    </message>
    <message>
        <source>Show the records of one process only</source>
        <translation>只显示某一进程的记录</translation>
    </message>
    <message>
        <source>&amp;From level</source>
        <translation>最低级别(&amp;F)</translation>
    </message>
    <message>
        <source>From level</source>
        <translation>最低级别</translation>
    </message>
    <message>
        <source>Show only what is at least this severe</source>
        <translation>只显示不低于此级别的记录</translation>
    </message>
    <message>
        <source>Filter by text (Ctrl+F)</source>
        <translation>按文字筛选 (Ctrl+F)</translation>
    </message>
    <message>
        <source>Filter by text</source>
        <translation>按文字筛选</translation>
    </message>
    <message>
        <source>Show the records whose message has this text</source>
        <translation>只显示消息中包含此文字的记录</translation>
    </message>
    <message>
        <source>&amp;Copy</source>
        <translation>复制(&amp;C)</translation>
    </message>
    <message>
        <source>Copy</source>
        <translation>复制</translation>
    </message>
    <message>
        <source>Copy the selected records, or all that are shown</source>
        <translation>复制所选记录；未选择时复制显示的全部记录</translation>
    </message>
    <message>
        <source>Crash report: {0}</source>
        <translation>崩溃报告：{0}</translation>
    </message>
    <message>
        <source>Older records ({0}) are in the file only.</source>
        <translation>更早的记录（{0} 条）仅保存在文件中。</translation>
    </message>
    <message>
        <source>File: {0}</source>
        <translation>文件：{0}</translation>
    </message>
</context>
<context>
    <name>LongTextEditor</name>
    <message>
        <source>(empty)</source>
        <translation>（空）</translation>
    </message>
</context>
<context>
    <name>MemoryPanel</name>
    <message>
        <source>Memory by holder</source>
        <translation>内存占用分布</translation>
    </message>
    <message>
        <source>Vivavoce&apos;s own memory by holder</source>
        <translation>Vivavoce 自身的内存占用分布</translation>
    </message>
    <message>
        <source>The parts of the table below, to scale</source>
        <translation>下表各部分的比例</translation>
    </message>
    <message>
        <source>Pages of the conversation&apos;s memory</source>
        <translation>对话缓存的页</translation>
    </message>
    <message>
        <source>One box is one page: filled where it exists, empty where it may still come</source>
        <translation>每格代表一页：实心为已分配，空心为可分配</translation>
    </message>
    <message>
        <source>What can be given up while memory is scarce</source>
        <translation>内存紧张时可释放的内容</translation>
    </message>
    <message>
        <source>Models and what they hold</source>
        <translation>各模型及其占用</translation>
    </message>
    <message>
        <source>Memory of {0}: {1}</source>
        <translation>{0} 显存：{1}</translation>
    </message>
    <message>
        <source>RAM: {0}</source>
        <translation>内存：{0}</translation>
    </message>
    <message>
        <source>The language model runs on the CPU, so this is the computer&apos;s main memory.</source>
        <translation>语言模型在 CPU 上运行，因此这里显示的是计算机主内存。</translation>
    </message>
    <message>
        <source>Of this Vivavoce&apos;s own: {0}</source>
        <translation>其中 Vivavoce 占用：{0}</translation>
    </message>
    <message>
        <source>held by</source>
        <translation>占用者</translation>
    </message>
    <message>
        <source>size</source>
        <translation>大小</translation>
    </message>
    <message>
        <source>share</source>
        <translation>占比</translation>
    </message>
    <message>
        <source>process {0}: {1}</source>
        <translation>进程 {0}：{1}</translation>
    </message>
    <message>
        <source>other programs and the system</source>
        <translation>其他程序和系统</translation>
    </message>
    <message>
        <source>other programs</source>
        <translation>其他程序</translation>
    </message>
    <message>
        <source>language model</source>
        <translation>语言模型</translation>
    </message>
    <message>
        <source>its conversation</source>
        <translation>对话缓存</translation>
    </message>
    <message>
        <source>speech models</source>
        <translation>语音模型</translation>
    </message>
    <message>
        <source>the rest of Vivavoce</source>
        <translation>Vivavoce 其余部分</translation>
    </message>
    <message>
        <source>free</source>
        <translation>空闲</translation>
    </message>
    <message>
        <source>What the model remembers</source>
        <translation>模型记忆</translation>
    </message>
    <message>
        <source>{0:,} of {1:,} tokens in {2} pages of {3}, {4} of them shared</source>
        <translation>{0:,} / {1:,} 词元，{2} 页（每页 {3}），其中 {4} 页共享</translation>
    </message>
    <message>
        <source>; {0} sessions lie on the host</source>
        <translation>；{0} 个会话已移至主机内存</translation>
    </message>
    <message>
        <source>page of its own</source>
        <translation>独占页</translation>
    </message>
    <message>
        <source>page that several share</source>
        <translation>共享页</translation>
    </message>
    <message>
        <source>may still come</source>
        <translation>可分配</translation>
    </message>
    <message>
        <source>conversation</source>
        <translation>对话</translation>
    </message>
    <message>
        <source>session {0}</source>
        <translation>会话 {0}</translation>
    </message>
    <message>
        <source>persona {0}</source>
        <translation>角色 {0}</translation>
    </message>
    <message>
        <source>{0} of {1} pages, {2:,} tokens</source>
        <translation>{0} / {1} 页，{2:,} 词元</translation>
    </message>
    <message>
        <source>Enough memory is free</source>
        <translation>空闲内存充足</translation>
    </message>
    <message>
        <source>Memory is tight: something is given up</source>
        <translation>内存紧张：正在释放部分内容</translation>
    </message>
    <message>
        <source>Memory is critical: things are given up at once</source>
        <translation>内存严重不足：正在立即释放</translation>
    </message>
    <message>
        <source>Pressure: nobody watches the memory</source>
        <translation>内存压力：未启用监测</translation>
    </message>
    <message>
        <source>Pressure: not known yet</source>
        <translation>内存压力：未知</translation>
    </message>
    <message>
        <source>mildest first</source>
        <translation>释放顺序（由轻到重）</translation>
    </message>
    <message>
        <source>state</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>spare pages</source>
        <translation>备用页</translation>
    </message>
    <message>
        <source>half of the window</source>
        <translation>半个上下文窗口</translation>
    </message>
    <message>
        <source>conversation in 8 bits</source>
        <translation>对话缓存转为 8 位</translation>
    </message>
    <message>
        <source>smaller weights</source>
        <translation>更小的权重</translation>
    </message>
    <message>
        <source>ear on the CPU</source>
        <translation>听觉移至 CPU</translation>
    </message>
    <message>
        <source>smaller model</source>
        <translation>更小的模型</translation>
    </message>
    <message>
        <source>model on the CPU</source>
        <translation>模型移至 CPU</translation>
    </message>
    <message>
        <source>given up</source>
        <translation>已释放</translation>
    </message>
    <message>
        <source>possible</source>
        <translation>可释放</translation>
    </message>
    <message>
        <source>nothing now</source>
        <translation>暂无可释放</translation>
    </message>
    <message>
        <source>{0} came free</source>
        <translation>已腾出 {0}</translation>
    </message>
    <message>
        <source>{0} would come free</source>
        <translation>可腾出 {0}</translation>
    </message>
    <message>
        <source>model</source>
        <translation>模型</translation>
    </message>
    <message>
        <source>runs on</source>
        <translation>运行于</translation>
    </message>
    <message>
        <source>holds at most</source>
        <translation>最多占用</translation>
    </message>
    <message>
        <source>Models</source>
        <translation>模型</translation>
    </message>
    <message>
        <source>recognition</source>
        <translation>语音识别</translation>
    </message>
    <message>
        <source>end of turn</source>
        <translation>断句检测</translation>
    </message>
    <message>
        <source>language model, window</source>
        <translation>语言模型与窗口</translation>
    </message>
    <message>
        <source>voice</source>
        <translation>语音合成</translation>
    </message>
    <message>
        <source>speech detector</source>
        <translation>语音检测</translation>
    </message>
</context>
<context>
    <name>ModelCard</name>
    <message>
        <source>in use: {0}</source>
        <translation>使用中：{0}</translation>
    </message>
    <message>
        <source>in use</source>
        <translation>使用中</translation>
    </message>
    <message>
        <source>Speech recognition</source>
        <translation>语音识别</translation>
    </message>
    <message>
        <source>Voice detection</source>
        <translation>语音检测</translation>
    </message>
    <message>
        <source>End of turn</source>
        <translation>断句检测</translation>
    </message>
    <message>
        <source>Voice</source>
        <translation>语音合成</translation>
    </message>
    <message>
        <source>Language model</source>
        <translation>语言模型</translation>
    </message>
    <message>
        <source>any language</source>
        <translation>任何语言</translation>
    </message>
    <message>
        <source>tells the time of each word</source>
        <translation>提供逐词时间戳</translation>
    </message>
    <message>
        <source>Licence {0}</source>
        <translation>许可证 {0}</translation>
    </message>
    <message>
        <source>Installed and verified</source>
        <translation>已安装并校验</translation>
    </message>
    <message>
        <source>Not installed</source>
        <translation>未安装</translation>
    </message>
    <message>
        <source>Partly downloaded</source>
        <translation>已下载一部分</translation>
    </message>
    <message>
        <source>Damaged</source>
        <translation>已损坏</translation>
    </message>
    <message>
        <source>Waiting for its turn</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>Downloading</source>
        <translation>下载中</translation>
    </message>
    <message>
        <source>Pausing…</source>
        <translation>正在暂停…</translation>
    </message>
    <message>
        <source>Cancelling…</source>
        <translation>正在取消…</translation>
    </message>
    <message>
        <source>Removing…</source>
        <translation>正在删除…</translation>
    </message>
    <message>
        <source>Reading every byte…</source>
        <translation>正在逐字节校验…</translation>
    </message>
    <message>
        <source>Whether it fits is not known: {0}</source>
        <translation>无法判断内存是否够用：{0}</translation>
    </message>
    <message>
        <source>main memory</source>
        <translation>主内存</translation>
    </message>
    <message>
        <source>Fits: needs {0}, free now {1} ({2})</source>
        <translation>内存够用：需要 {0}，当前空闲 {1}（{2}）</translation>
    </message>
    <message>
        <source>Does not fit: needs {0}, free now {1} ({2})</source>
        <translation>内存不足：需要 {0}，当前空闲 {1}（{2}）</translation>
    </message>
    <message>
        <source>The whole conversation with this model, as an engine would plan that starts now beside all else</source>
        <translation>按现在新启动一个引擎估算：使用此模型的整个对话所需内存</translation>
    </message>
    <message>
        <source>{0} of {1}</source>
        <translation>{0} / {1}</translation>
    </message>
    <message>
        <source>{0}/s, {1} left</source>
        <translation>{0}/s，剩余 {1}</translation>
    </message>
    <message>
        <source>Download</source>
        <translation>下载</translation>
    </message>
    <message>
        <source>Download this model into the store</source>
        <translation>将此模型下载到模型库</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Go on with the download</source>
        <translation>继续下载</translation>
    </message>
    <message>
        <source>Download again</source>
        <translation>重新下载</translation>
    </message>
    <message>
        <source>Replace the damaged files</source>
        <translation>替换损坏的文件</translation>
    </message>
    <message>
        <source>Pause</source>
        <translation>暂停</translation>
    </message>
    <message>
        <source>Stop; what was received is kept</source>
        <translation>暂停下载，保留已下载部分</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Stop, and delete what was received</source>
        <translation>停止下载并删除已下载部分</translation>
    </message>
    <message>
        <source>Discard</source>
        <translation>丢弃</translation>
    </message>
    <message>
        <source>Delete what was received</source>
        <translation>删除已下载部分</translation>
    </message>
    <message>
        <source>Verify</source>
        <translation>校验</translation>
    </message>
    <message>
        <source>Read every byte again and compare it with the catalog</source>
        <translation>重新读取全部内容并与目录比对</translation>
    </message>
    <message>
        <source>Remove…</source>
        <translation>删除…</translation>
    </message>
    <message>
        <source>Delete this model from the store</source>
        <translation>从模型库中删除此模型</translation>
    </message>
</context>
<context>
    <name>ModelsPanel</name>
    <message>
        <source>Models</source>
        <translation>模型</translation>
    </message>
    <message>
        <source>The models of the catalog</source>
        <translation>目录中的模型</translation>
    </message>
    <message>
        <source>Store: {0}</source>
        <translation>模型库：{0}</translation>
    </message>
    <message>
        <source>&amp;Look again</source>
        <translation>刷新(&amp;L)</translation>
    </message>
    <message>
        <source>Look at the store and at the free memory again</source>
        <translation>重新检查模型库和空闲内存</translation>
    </message>
    <message>
        <source>Delete {0} ({1}) from the store?</source>
        <translation>从模型库中删除 {0}（{1}）？</translation>
    </message>
    <message>
        <source>The configuration uses it ({0}): the next conversation will not start without it.</source>
        <translation>当前配置正在使用它（{0}）：删除后将无法开始下一次对话。</translation>
    </message>
    <message>
        <source>Remove a model</source>
        <translation>删除模型</translation>
    </message>
</context>
<context>
    <name>Panel</name>
    <message>
        <source>Conversation</source>
        <translation>对话</translation>
    </message>
    <message>
        <source>Signal</source>
        <translation>信号</translation>
    </message>
    <message>
        <source>Memory</source>
        <translation>内存</translation>
    </message>
    <message>
        <source>Devices</source>
        <translation>设备</translation>
    </message>
    <message>
        <source>Models</source>
        <translation>模型</translation>
    </message>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>Latency</source>
        <translation>延迟</translation>
    </message>
    <message>
        <source>Emotion</source>
        <translation>情绪</translation>
    </message>
    <message>
        <source>Log</source>
        <translation>日志</translation>
    </message>
    <message>
        <source>Doctor</source>
        <translation>诊断</translation>
    </message>
</context>
<context>
    <name>Schema</name>
    <message>
        <source>Which of the personas speaks</source>
        <translation>由哪个角色说话</translation>
    </message>
    <message>
        <source>Microphone by name or part of it; empty: the system&apos;s default</source>
        <translation>麦克风名称或其中一部分；留空：系统默认</translation>
    </message>
    <message>
        <source>Loudspeaker by name or part of it; empty: the system&apos;s default</source>
        <translation>扬声器名称或其中一部分；留空：系统默认</translation>
    </message>
    <message>
        <source>Device rate in Hz; 0: the device&apos;s own</source>
        <translation>设备采样率（Hz）；0：设备自身的采样率</translation>
    </message>
    <message>
        <source>duplex: one stream; split: two, with their clocks matched; auto: one where it opens</source>
        <translation>duplex：单个双工流；split：两个流并同步时钟；auto：能打开双工流时使用双工</translation>
    </message>
    <message>
        <source>Stages that the signal passes, in order; speech recognition hears the end of the chain</source>
        <translation>信号依次经过的处理级；语音识别使用最后一级的输出</translation>
    </message>
    <message>
        <source>The stage whose output the voice detectors hear; empty: the bare microphone</source>
        <translation>语音检测使用哪一级的输出；留空：麦克风原始信号</translation>
    </message>
    <message>
        <source>Model of role vad; see: vivavoce models list</source>
        <translation>vad（语音检测）模型；可选项见 vivavoce models list</translation>
    </message>
    <message>
        <source>Aggressiveness of the fast voice gate; 3 passes least</source>
        <translation>快速语音门限的严格程度；3 最严格</translation>
    </message>
    <message>
        <source>Speech probability from which the judge hears speech</source>
        <translation>语音概率达到此值即判定为语音</translation>
    </message>
    <message>
        <source>Speech probability below which it hears silence; under speech_on</source>
        <translation>语音概率低于此值即判定为静音；应小于 speech_on</translation>
    </message>
    <message>
        <source>Model of role turn; see: vivavoce models list</source>
        <translation>turn（断句检测）模型；可选项见 vivavoce models list</translation>
    </message>
    <message>
        <source>Silence in ms after which the end-of-turn model is asked</source>
        <translation>静音达到此时长（ms）后询问断句检测模型</translation>
    </message>
    <message>
        <source>Its probability from which the turn is over at once</source>
        <translation>断句概率达到此值即立刻结束该轮</translation>
    </message>
    <message>
        <source>Silence in ms that ends a turn whatever the model says</source>
        <translation>静音达到此时长（ms）则无论模型如何判断都结束该轮</translation>
    </message>
    <message>
        <source>Speech in ms during a reply that stops the reply</source>
        <translation>回复期间用户说话达到此时长（ms）即打断回复</translation>
    </message>
    <message>
        <source>The same in ms while the ear cannot yet tell its own echo from a user</source>
        <translation>同上（ms），用于回声消除尚未收敛、无法区分回声与用户时</translation>
    </message>
    <message>
        <source>Speech probability that counts as speech during a reply</source>
        <translation>回复期间判定为语音的概率</translation>
    </message>
    <message>
        <source>Audio in ms kept from before the onset of speech</source>
        <translation>保留语音起点之前的音频时长（ms）</translation>
    </message>
    <message>
        <source>Model of role asr; see: vivavoce models list</source>
        <translation>asr（语音识别）模型；可选项见 vivavoce models list</translation>
    </message>
    <message>
        <source>Threads</source>
        <translation>线程数</translation>
    </message>
    <message>
        <source>Shortest time in ms between two partial transcripts</source>
        <translation>两次中间识别结果之间的最短间隔（ms）</translation>
    </message>
    <message>
        <source>Segment length in s from which a pause cuts it</source>
        <translation>语音段超过此时长（s）后遇停顿即切分</translation>
    </message>
    <message>
        <source>Segment length in s at which it is cut at its quietest place</source>
        <translation>语音段达到此时长（s）时在最安静处切分</translation>
    </message>
    <message>
        <source>Model of role llm; see: vivavoce models list</source>
        <translation>llm（语言模型）；可选项见 vivavoce models list</translation>
    </message>
    <message>
        <source>auto: a GPU where one works, else the CPU; cpu; cuda or cuda:N</source>
        <translation>auto：有可用 GPU 时使用 GPU，否则使用 CPU；cpu；cuda 或 cuda:N</translation>
    </message>
    <message>
        <source>How the weights are held in memory; auto: int8 on the CPU, bf16 on a GPU</source>
        <translation>权重在内存中的精度；auto：CPU 用 int8，GPU 用 bf16</translation>
    </message>
    <message>
        <source>Length of the conversation window in tokens</source>
        <translation>上下文窗口长度（词元）</translation>
    </message>
    <message>
        <source>How the window is held in memory; auto: as the model computes; int8, fp8: about half of bf16</source>
        <translation>上下文缓存的精度；auto：与模型计算精度相同；int8、fp8：约为 bf16 的一半</translation>
    </message>
    <message>
        <source>Keep what the model has read of the conversation on disk, so that a new engine need not read it</source>
        <translation>将模型已读的对话缓存到磁盘，新引擎无需重新读取</translation>
    </message>
    <message>
        <source>0: always the most likely token</source>
        <translation>0：总是选择概率最高的词元</translation>
    </message>
    <message>
        <source>Choose among the k most likely tokens; 0: all</source>
        <translation>从概率最高的 k 个词元中选择；0：全部</translation>
    </message>
    <message>
        <source>Choose among the tokens that make up this probability</source>
        <translation>从累计概率达到此值的词元中选择</translation>
    </message>
    <message>
        <source>1: none; greater: fewer repeated words</source>
        <translation>1：不惩罚；越大重复用词越少</translation>
    </message>
    <message>
        <source>Start of the random choices; same seed, same answers</source>
        <translation>随机种子；种子相同则回答相同</translation>
    </message>
    <message>
        <source>Give memory back while it is scarce, mildest first, and take it back later</source>
        <translation>内存紧张时由轻到重释放内存，之后再恢复</translation>
    </message>
    <message>
        <source>Free memory in MB below which it is scarce; 0: a 32nd of all, 268 to 1074</source>
        <translation>空闲内存低于此值（MB）视为紧张；0：总量的 1/32，限于 268 至 1074</translation>
    </message>
    <message>
        <source>No conversation window is made smaller than this, in tokens</source>
        <translation>上下文窗口不会缩小到此值以下（词元）</translation>
    </message>
    <message>
        <source>Model of role tts for personas without a voice; see: vivavoce models list</source>
        <translation>未指定声音的角色所用的 tts（语音合成）模型；可选项见 vivavoce models list</translation>
    </message>
    <message>
        <source>Said when the agent needs a moment to recover; empty: nothing is said</source>
        <translation>助手需要片刻恢复时说的话；留空：不说</translation>
    </message>
    <message>
        <source>Until a lost device is back: go on with the system&apos;s default device, or wait in silence</source>
        <translation>设备断开期间：改用系统默认设备继续，或静默等待</translation>
    </message>
    <message>
        <source>Model store; empty: VIVAVOCE_STORE, else models/ in the user&apos;s data folder</source>
        <translation>模型库；留空：VIVAVOCE_STORE，否则为用户数据文件夹中的 models/</translation>
    </message>
    <message>
        <source>Journals and recordings; empty: the user&apos;s data folder</source>
        <translation>对话记录与录音；留空：用户数据文件夹</translation>
    </message>
    <message>
        <source>Colours of the window</source>
        <translation>窗口配色</translation>
    </message>
    <message>
        <source>Language of the window; empty: the system&apos;s</source>
        <translation>窗口语言；留空：跟随系统</translation>
    </message>
    <message>
        <source>Time in ms from your last word to the answer&apos;s first sound that you find right</source>
        <translation>您期望的响应时间（ms）：从说完最后一个字到听到回答的第一声</translation>
    </message>
    <message>
        <source>System prompt; empty: the model&apos;s own</source>
        <translation>系统提示词；留空：模型自带</translation>
    </message>
    <message>
        <source>Model of role tts; empty: tts.model</source>
        <translation>tts（语音合成）模型；留空：使用 tts.model</translation>
    </message>
    <message>
        <source>Longest reply in tokens</source>
        <translation>单次回复的最大长度（词元）</translation>
    </message>
    <message>
        <source>Conversation remembered, in tokens</source>
        <translation>记住的对话长度（词元）</translation>
    </message>
</context>
<context>
    <name>SettingRow</name>
    <message>
        <source>Back to the default</source>
        <translation>恢复默认值</translation>
    </message>
    <message>
        <source>Back to the default: {0}</source>
        <translation>恢复默认值：{0}</translation>
    </message>
    <message>
        <source>any of {0}</source>
        <translation>可多选：{0}</translation>
    </message>
    <message>
        <source>more than {0}, up to {1}</source>
        <translation>大于 {0}，至多 {1}</translation>
    </message>
    <message>
        <source>{0} to {1}</source>
        <translation>{0} 至 {1}</translation>
    </message>
    <message>
        <source>changed, not saved</source>
        <translation>已修改，未保存</translation>
    </message>
    <message>
        <source>default</source>
        <translation>默认</translation>
    </message>
    <message>
        <source>from the default persona</source>
        <translation>来自默认角色</translation>
    </message>
    <message>
        <source>from your file</source>
        <translation>来自您的配置文件</translation>
    </message>
    <message>
        <source>set by {0}</source>
        <translation>由 {0} 设定</translation>
    </message>
    <message>
        <source>Read-only: it is set by {0}, which wins over the file</source>
        <translation>只读：由 {0} 设定，优先于配置文件</translation>
    </message>
</context>
<context>
    <name>SettingsPanel</name>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>Sections</source>
        <translation>分类</translation>
    </message>
    <message>
        <source>Filter all settings (Ctrl+F)</source>
        <translation>筛选全部设置 (Ctrl+F)</translation>
    </message>
    <message>
        <source>Filter all settings</source>
        <translation>筛选全部设置</translation>
    </message>
    <message>
        <source>Words of a key, of its help or of its value</source>
        <translation>设置项名称、说明或值中的文字</translation>
    </message>
    <message>
        <source>Settings of the section</source>
        <translation>此分类的设置</translation>
    </message>
    <message>
        <source>No setting has these words.</source>
        <translation>没有包含这些文字的设置。</translation>
    </message>
    <message>
        <source>Add &amp;persona…</source>
        <translation>添加角色(&amp;P)…</translation>
    </message>
    <message>
        <source>A persona that begins like the default one</source>
        <translation>以默认角色为模板新建角色</translation>
    </message>
    <message>
        <source>Re&amp;name…</source>
        <translation>重命名(&amp;N)…</translation>
    </message>
    <message>
        <source>Give this persona another name</source>
        <translation>给此角色换个名称</translation>
    </message>
    <message>
        <source>Re&amp;move</source>
        <translation>移除(&amp;M)</translation>
    </message>
    <message>
        <source>Take this persona out of your file</source>
        <translation>从您的配置文件中移除此角色</translation>
    </message>
    <message>
        <source>&amp;Undo</source>
        <translation>撤销(&amp;U)</translation>
    </message>
    <message>
        <source>Take the last change back</source>
        <translation>撤销上一次修改</translation>
    </message>
    <message>
        <source>&amp;Discard</source>
        <translation>放弃(&amp;D)</translation>
    </message>
    <message>
        <source>Take all changes back that are not saved</source>
        <translation>放弃所有未保存的修改</translation>
    </message>
    <message>
        <source>&amp;Apply</source>
        <translation>应用(&amp;A)</translation>
    </message>
    <message>
        <source>Save, and begin the conversation anew (Ctrl+S)</source>
        <translation>保存并重新开始对话 (Ctrl+S)</translation>
    </message>
    <message>
        <source>General</source>
        <translation>常规</translation>
    </message>
    <message>
        <source>Microphone, loudspeaker</source>
        <translation>麦克风与扬声器</translation>
    </message>
    <message>
        <source>Hearing</source>
        <translation>听觉处理</translation>
    </message>
    <message>
        <source>Taking turns</source>
        <translation>轮次切换</translation>
    </message>
    <message>
        <source>Speech recognition</source>
        <translation>语音识别</translation>
    </message>
    <message>
        <source>Language model</source>
        <translation>语言模型</translation>
    </message>
    <message>
        <source>Memory</source>
        <translation>内存</translation>
    </message>
    <message>
        <source>Voice</source>
        <translation>语音合成</translation>
    </message>
    <message>
        <source>Recovery</source>
        <translation>故障恢复</translation>
    </message>
    <message>
        <source>Folders</source>
        <translation>文件夹</translation>
    </message>
    <message>
        <source>Window</source>
        <translation>窗口</translation>
    </message>
    <message>
        <source>Persona: {0}</source>
        <translation>角色：{0}</translation>
    </message>
    <message>
        <source>Not saved yet. Applying begins the conversation anew.</source>
        <translation>尚未保存。应用后将重新开始对话。</translation>
    </message>
    <message>
        <source>File: {0}</source>
        <translation>文件：{0}</translation>
    </message>
    <message>
        <source>Add a persona</source>
        <translation>添加角色</translation>
    </message>
    <message>
        <source>Rename the persona</source>
        <translation>重命名角色</translation>
    </message>
    <message>
        <source>Name</source>
        <translation>名称</translation>
    </message>
    <message>
        <source>{0} is taken, or has a dot, a quote or a backslash in it.</source>
        <translation>{0} 已被使用，或包含点号、引号或反斜杠。</translation>
    </message>
</context>
<context>
    <name>SignalPanel</name>
    <message>
        <source>now, {0} s in all</source>
        <translation>正在双讲，共 {0} s</translation>
    </message>
    <message>
        <source>{0} ms never came from the device, {1} ms came while this machine was too busy</source>
        <translation>设备漏采 {0} ms；因本机繁忙未及处理 {1} ms</translation>
    </message>
    <message>
        <source>Microphone</source>
        <translation>麦克风</translation>
    </message>
    <message>
        <source>What the microphone delivers; the number is the peak, in dB of full scale</source>
        <translation>麦克风采集的信号；数字为峰值（dBFS）</translation>
    </message>
    <message>
        <source>Loudspeaker</source>
        <translation>扬声器</translation>
    </message>
    <message>
        <source>What leaves the loudspeaker (the far end)</source>
        <translation>扬声器播放的信号（远端）</translation>
    </message>
    <message>
        <source>Clean</source>
        <translation>净化后</translation>
    </message>
    <message>
        <source>The microphone without echo and noise: what is recognised</source>
        <translation>去除回声和噪声后的麦克风信号，用于语音识别</translation>
    </message>
    <message>
        <source>Peak of {0}</source>
        <translation>{0} 峰值</translation>
    </message>
    <message>
        <source>No sound yet</source>
        <translation>暂无声音</translation>
    </message>
    <message>
        <source>You</source>
        <translation>您</translation>
    </message>
    <message>
        <source>Reply</source>
        <translation>回复</translation>
    </message>
    <message>
        <source>Spectrogram of the microphone</source>
        <translation>麦克风频谱图</translation>
    </message>
    <message>
        <source>The microphone&apos;s frequencies over the last 20 s. Beneath: how probable it is that you spoke, and when a reply played; both at once is double talk, in another colour.</source>
        <translation>最近 20 s 麦克风的频谱。下方显示您说话的概率以及回复播放的时段；两者重叠即为双讲，以另一种颜色显示。</translation>
    </message>
    <message>
        <source>Nothing measures it yet</source>
        <translation>目前尚未测量</translation>
    </message>
    <message>
        <source>Speech</source>
        <translation>语音概率</translation>
    </message>
    <message>
        <source>Probability that the microphone hears speech and no echo</source>
        <translation>麦克风收到的是语音而非回声的概率</translation>
    </message>
    <message>
        <source>Double talk</source>
        <translation>双讲</translation>
    </message>
    <message>
        <source>How long you spoke while a reply played</source>
        <translation>回复播放期间您说话的时长</translation>
    </message>
    <message>
        <source>SNR</source>
        <translation>信噪比</translation>
    </message>
    <message>
        <source>Estimated: power of the microphone while you speak over its power while nobody does, the last half minute of each; what comes while a reply plays is left out</source>
        <translation>估计值：您说话时与无人说话时麦克风功率之比，各取最近半分钟；不计回复播放期间</translation>
    </message>
    <message>
        <source>ERLE</source>
        <translation>ERLE</translation>
    </message>
    <message>
        <source>Lost sound</source>
        <translation>丢失声音</translation>
    </message>
    <message>
        <source>Gaps in replies</source>
        <translation>回复断音</translation>
    </message>
    <message>
        <source>Times that a reply had no sound to play</source>
        <translation>回复播放时缺少音频数据的次数</translation>
    </message>
    <message>
        <source>Round trip</source>
        <translation>回路延迟</translation>
    </message>
    <message>
        <source>From the loudspeaker back to the microphone</source>
        <translation>从扬声器回到麦克风的时间</translation>
    </message>
    <message>
        <source>Clock drift</source>
        <translation>时钟漂移</translation>
    </message>
    <message>
        <source>How much faster the loudspeaker&apos;s clock runs; nothing where one clock drives both</source>
        <translation>扬声器时钟比麦克风快多少；共用一个时钟时不显示</translation>
    </message>
    <message>
        <source>Ear behind</source>
        <translation>处理滞后</translation>
    </message>
    <message>
        <source>From a block of sound arriving to its being understood as speech</source>
        <translation>从音频块到达至完成语音判定的时间</translation>
    </message>
    <message>
        <source>Speech quality</source>
        <translation>语音质量</translation>
    </message>
</context>
<context>
    <name>SuggestionsEditor</name>
    <message>
        <source>(empty)</source>
        <translation>（空）</translation>
    </message>
</context>
<context>
    <name>SwitchEditor</name>
    <message>
        <source>on</source>
        <translation>开</translation>
    </message>
    <message>
        <source>off</source>
        <translation>关</translation>
    </message>
</context>
<context>
    <name>TextEditor</name>
    <message>
        <source>(empty)</source>
        <translation>（空）</translation>
    </message>
</context>
<context>
    <name>TranscriptWords</name>
    <message>
        <source>Agent</source>
        <translation>助手</translation>
    </message>
    <message>
        <source>You (typed)</source>
        <translation>您（键入）</translation>
    </message>
    <message>
        <source>You</source>
        <translation>您</translation>
    </message>
    <message>
        <source>{0} ({1} times)</source>
        <translation>{0}（{1} 次）</translation>
    </message>
    <message>
        <source>not heard</source>
        <translation>未听到</translation>
    </message>
    <message>
        <source>Error: {0}</source>
        <translation>错误：{0}</translation>
    </message>
    <message>
        <source>Warning: {0}</source>
        <translation>警告：{0}</translation>
    </message>
    <message>
        <source>Lost the {0} ({1}); another one is being started.</source>
        <translation>{0}意外退出（{1}），正在重新启动。</translation>
    </message>
    <message>
        <source>The {0} is back after {1:.1f} s.</source>
        <translation>{0}已在 {1:.1f} s 后恢复。</translation>
    </message>
    <message>
        <source>Lost {0}: {1}</source>
        <translation>设备 {0} 已断开：{1}</translation>
    </message>
    <message>
        <source>{0} is back.</source>
        <translation>{0} 已重新连接。</translation>
    </message>
    <message>
        <source>Memory is short: {0}; {1:.0f} MB came free.</source>
        <translation>内存不足：{0}；腾出 {1:.0f} MB。</translation>
    </message>
    <message>
        <source>There is memory again: {0}.</source>
        <translation>内存已恢复：{0}。</translation>
    </message>
    <message>
        <source>The conversation has ended: {0}</source>
        <translation>对话已结束：{0}</translation>
    </message>
    <message>
        <source>ear</source>
        <translation>听觉模块</translation>
    </message>
    <message>
        <source>engine</source>
        <translation>引擎</translation>
    </message>
    <message>
        <source>pages that held no words were given back</source>
        <translation>已归还未使用的页</translation>
    </message>
    <message>
        <source>half of the conversation&apos;s window was given up</source>
        <translation>已释放一半上下文窗口</translation>
    </message>
    <message>
        <source>the conversation is held in 8 bits</source>
        <translation>对话缓存已转为 8 位</translation>
    </message>
    <message>
        <source>the language model moved to the CPU</source>
        <translation>语言模型已移至 CPU</translation>
    </message>
    <message>
        <source>pages may be held ahead</source>
        <translation>可再次预留页</translation>
    </message>
    <message>
        <source>the window is whole</source>
        <translation>上下文窗口已完整恢复</translation>
    </message>
    <message>
        <source>the conversation is held as it was computed</source>
        <translation>对话缓存已恢复原精度</translation>
    </message>
    <message>
        <source>the language model is back on the GPU</source>
        <translation>语言模型已回到 GPU</translation>
    </message>
</context>
<context>
    <name>WholeEditor</name>
    <message>
        <source>tokens</source>
        <translation>词元</translation>
    </message>
</context>
<context>
    <name>Window</name>
    <message>
        <source>Loading the models…</source>
        <translation>正在加载模型…</translation>
    </message>
    <message>
        <source>Listening</source>
        <translation>正在聆听</translation>
    </message>
    <message>
        <source>Hearing you</source>
        <translation>听到您说话</translation>
    </message>
    <message>
        <source>Thinking</source>
        <translation>思考中</translation>
    </message>
    <message>
        <source>Speaking</source>
        <translation>正在说话</translation>
    </message>
    <message>
        <source>Ended</source>
        <translation>已结束</translation>
    </message>
    <message>
        <source>{0} ms to the first sound</source>
        <translation>首声延迟 {0} ms</translation>
    </message>
    <message>
        <source>&amp;Conversation</source>
        <translation>对话(&amp;C)</translation>
    </message>
    <message>
        <source>&amp;View</source>
        <translation>视图(&amp;V)</translation>
    </message>
    <message>
        <source>&amp;Begin anew</source>
        <translation>重新开始(&amp;B)</translation>
    </message>
    <message>
        <source>&amp;Quit</source>
        <translation>退出(&amp;Q)</translation>
    </message>
    <message>
        <source>&amp;Dark or light</source>
        <translation>深色/浅色(&amp;D)</translation>
    </message>
    <message>
        <source>&amp;English or Chinese</source>
        <translation>中文/英文(&amp;E)</translation>
    </message>
</context>
</TS>
